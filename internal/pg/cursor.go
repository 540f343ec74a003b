package pg

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"math"
	"strings"
)

// A Cursor is where a page of a listing ended: the place of its last row in the listing's order. The zero Cursor is the beginning; its fields
// are null to SQL.
type Cursor struct {
	Listing string     `json:"l"`           // which listing it is of
	At      *Timestamp `json:"t,omitempty"` // the time that the listing is ordered by
	ID      *int64     `json:"i,omitempty"`
	Name    *string    `json:"n,omitempty"`
}

// minTimestamp and endTimestamp bound what a timestamptz holds, beside infinity: see MIN_TIMESTAMP and END_TIMESTAMP in PostgreSQL's
// src/include/datatype/timestamp.h.
const (
	minTimestamp = -211_813_488_000_000_000
	endTimestamp = 9_223_371_331_200_000_000
)

// String returns the cursor as ParseCursor reads it.
func (c Cursor) String() string {
	text, err := json.Marshal(c)
	if err != nil {
		panic(err) // every cursor can be written
	}
	return base64.RawURLEncoding.EncodeToString(text)
}

// ParseCursor reads a cursor of a listing; the empty text is the beginning. It fails with ErrBadCursor.
func ParseCursor(listing, text string) (Cursor, error) {
	if text == "" {
		return Cursor{}, nil
	}
	decoded, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return Cursor{}, ErrBadCursor
	}
	var c Cursor
	if err := json.Unmarshal(decoded, &c); err != nil || c.Listing != listing {
		return Cursor{}, ErrBadCursor
	}
	// PostgreSQL could not take other values, and no page ends there.
	isTime := c.At == nil || *c.At == math.MinInt64 || *c.At == math.MaxInt64 || *c.At >= minTimestamp && *c.At < endTimestamp
	if !isTime || c.Name != nil && strings.Contains(*c.Name, "\x00") {
		return Cursor{}, ErrBadCursor
	}
	return c, nil
}

// Sizes of pages.
const (
	DefaultPage = 100  // rows unless said otherwise
	MaxPage     = 1000 // rows at most
)

// PageSize returns how many rows a page has when limit (zero: DefaultPage) were asked for.
func PageSize(limit int) int { return min(cmp.Or(limit, DefaultPage), MaxPage) }

// Cut makes a page of rows, of which one more was read than it has, to learn whether there is another page. It returns the cursor of
// that, empty when there is none; end returns where a row stands in the order of the listing.
func Cut[T any](rows []T, size int, listing string, end func(*T) Cursor) (page []T, next string) {
	if len(rows) <= size {
		return rows, ""
	}
	cursor := end(&rows[size-1])
	cursor.Listing = listing
	return rows[:size], cursor.String()
}

// ReadPage returns the page of a listing that begins at a cursor, as Cut does. read returns n rows after where another page ended. It
// fails with ErrBadCursor.
func ReadPage[T any](
	listing, cursor string, limit int, read func(after Cursor, n int) ([]T, error), end func(*T) Cursor,
) (page []T, next string, err error) {
	after, err := ParseCursor(listing, cursor)
	if err != nil {
		return nil, "", err
	}
	size := PageSize(limit)
	rows, err := read(after, size+1)
	if err != nil {
		return nil, "", err
	}
	page, next = Cut(rows, size, listing, end)
	return page, next, nil
}
