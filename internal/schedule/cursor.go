package schedule

import (
	"encoding/base64"
	"encoding/json"
	"math"

	"github.com/queued/queued/internal/pg"
)

// cursor is where a page ended, and of which listing it was.
type cursor struct {
	Listing string        `json:"l"`
	At      *pg.Timestamp `json:"t,omitempty"` // the time the listing is ordered by, where it is, exactly
	ID      int64         `json:"i,omitempty"`
	Name    string        `json:"n,omitempty"`
}

// minTimestamp and endTimestamp bound what a timestamptz holds, beside infinity: see MIN_TIMESTAMP and END_TIMESTAMP in PostgreSQL's
// src/include/datatype/timestamp.h.
const (
	minTimestamp = -211_813_488_000_000_000
	endTimestamp = 9_223_371_331_200_000_000
)

func (c cursor) String() string {
	text, err := json.Marshal(c)
	if err != nil {
		panic(err) // every cursor can be written
	}
	return base64.RawURLEncoding.EncodeToString(text)
}

// parseCursor reads what cursor.String wrote for the same listing; nil is the beginning.
func parseCursor(listing, s string) (*cursor, error) {
	if s == "" {
		return nil, nil
	}
	text, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil {
		return nil, ErrBadCursor
	}
	var c cursor
	if err := json.Unmarshal(text, &c); err != nil || c.Listing != listing {
		return nil, ErrBadCursor
	}
	// PostgreSQL could not take them, and no page ends there.
	isTime := c.At == nil || *c.At == math.MinInt64 || *c.At == math.MaxInt64 || *c.At >= minTimestamp && *c.At < endTimestamp
	if !isTime || !isText(c.Name) {
		return nil, ErrBadCursor
	}
	return &c, nil
}
