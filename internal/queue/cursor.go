package queue

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/queued/queued/internal/pg"
)

// position is where a page ended: the time its listing is ordered by, and the id. The zero
// position is the beginning; its fields then are null to SQL.
type position struct {
	ts *pg.Timestamp
	id *int64
}

const (
	// unixEpoch is the Unix epoch as PostgreSQL counts time: cursors count microseconds from there.
	unixEpoch = -946_684_800_000_000
	// minTimestamp and endTimestamp bound what a timestamptz holds, beside infinity: see MIN_TIMESTAMP and END_TIMESTAMP in
	// PostgreSQL's src/include/datatype/timestamp.h.
	minTimestamp = -211_813_488_000_000_000
	endTimestamp = 9_223_371_331_200_000_000
)

// newCursor writes a position of a listing as an opaque string.
func newCursor(listing string, ts pg.Timestamp, id int64) string {
	text := "infinity"
	switch ts {
	case math.MaxInt64:
	case math.MinInt64:
		text = "-infinity"
	default:
		// Beyond an int64 in the last minutes of 294276: that far it wraps, and back again.
		text = strconv.FormatInt(int64(ts)-unixEpoch, 10)
	}
	return encodeCursor(listing, text, strconv.FormatInt(id, 10))
}

// parseCursor reads what newCursor wrote for the same listing; the empty cursor is the beginning.
func parseCursor(listing, cursor string) (position, error) {
	if cursor == "" {
		return position{}, nil
	}
	parts, err := decodeCursor(listing, cursor, 2)
	if err != nil {
		return position{}, err
	}
	var ts pg.Timestamp
	switch parts[0] {
	case "infinity":
		ts = math.MaxInt64
	case "-infinity":
		ts = math.MinInt64
	default:
		micros, err := strconv.ParseInt(parts[0], 10, 64)
		ts = pg.Timestamp(micros + unixEpoch)
		if err != nil || ts < minTimestamp || ts >= endTimestamp {
			return position{}, ErrBadCursor
		}
	}
	id, err := strconv.ParseInt(parts[1], 10, 64)
	if err != nil {
		return position{}, ErrBadCursor
	}
	return position{ts: &ts, id: &id}, nil
}

// encodeCursor writes the parts of a cursor of a listing, of which only the last may have blanks.
func encodeCursor(listing string, parts ...string) string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%s %s", listing, strings.Join(parts, " ")))
}

// decodeCursor reads what encodeCursor wrote of n parts for the same listing.
func decodeCursor(listing, cursor string, n int) ([]string, error) {
	text, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil {
		return nil, ErrBadCursor
	}
	parts := strings.SplitN(string(text), " ", n+1)
	if len(parts) != n+1 || parts[0] != listing || !utf8.Valid(text) || bytes.IndexByte(text, 0) >= 0 { // PostgreSQL could not take it
		return nil, ErrBadCursor
	}
	return parts[1:], nil
}
