package schedule

import (
	"encoding/base64"
	"encoding/json"
	"time"
)

// cursor is where a page ended, and of which listing it was.
type cursor struct {
	Listing string     `json:"l"`
	At      *time.Time `json:"t,omitempty"` // the time the listing is ordered by, where it is
	ID      int64      `json:"i,omitempty"`
	Name    string     `json:"n,omitempty"`
}

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
	if c.At != nil && (c.At.Year() < 1 || c.At.Year() > 9999) || !isText(c.Name) {
		return nil, ErrBadCursor
	}
	return &c, nil
}
