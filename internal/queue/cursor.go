package queue

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// position is where a page ended: the time its listing is ordered by, and the id. The zero
// position is the beginning; its fields then are null to SQL.
type position struct {
	ts *time.Time
	id *int64
}

// newCursor writes a position of a listing as an opaque string.
func newCursor(listing string, ts time.Time, id int64) string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%s %d %d", listing, ts.UnixMicro(), id))
}

// parseCursor reads what newCursor wrote for the same listing; the empty cursor is the beginning.
func parseCursor(listing, cursor string) (position, error) {
	if cursor == "" {
		return position{}, nil
	}
	text, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil {
		return position{}, ErrBadCursor
	}
	parts := strings.Split(string(text), " ")
	if len(parts) != 3 || parts[0] != listing {
		return position{}, ErrBadCursor
	}
	micros, err := strconv.ParseInt(parts[1], 10, 64)
	if err != nil {
		return position{}, ErrBadCursor
	}
	id, err := strconv.ParseInt(parts[2], 10, 64)
	if err != nil {
		return position{}, ErrBadCursor
	}
	ts := time.UnixMicro(micros)
	// Beyond these years a timestamptz does not go (appendix B of its manual page: 4713 BC to 294276 AD).
	if ts.Year() < -4000 || ts.Year() > 290000 {
		return position{}, ErrBadCursor
	}
	return position{ts: &ts, id: &id}, nil
}
