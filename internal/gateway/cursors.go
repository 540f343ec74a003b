package gateway

import (
	"encoding/base64"
	"encoding/json"
	"strconv"
)

// A place is where a listing goes on in one cell.
type place struct {
	cursor string // the cell's; empty: the beginning
	ended  bool   // the cell has no more
}

// places are where a listing over several cells goes on, by the numbers of the cells. A cell that is not among them is at its beginning: one that was away from the first
// page on, or that has come since.
type places map[int]place

// A placesText is places as a cursor has them.
type placesText struct {
	Cells map[string]*string `json:"cells"` // null: it has no more
}

// maxCursor is the length of a cursor at most: 256 cells with the longest that cells give.
const maxCursor = 64 << 10

// String returns the places as a cursor, which parsePlaces reads.
func (p places) String() string {
	text := placesText{Cells: make(map[string]*string, len(p))}
	for number, at := range p {
		name := strconv.Itoa(number)
		switch {
		case at.ended:
			text.Cells[name] = nil
		case at.cursor != "":
			text.Cells[name] = &at.cursor
		}
	}
	encoded, err := json.Marshal(text)
	if err != nil {
		panic(err) // strings always encode
	}
	return base64.RawURLEncoding.EncodeToString(encoded)
}

// parsePlaces reads a cursor; the empty text is the beginning. It fails with a *problem.
func parsePlaces(cursor string) (places, error) {
	at := places{}
	if cursor == "" {
		return at, nil
	}
	bad := refuse(invalidCursor, "Send `next` of a page of the same listing with the same filters, unchanged, or no cursor for the first page. "+
		"That of a page of one cell does not go on over several: begin again if the queue was moved since.")
	decoded, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil || len(cursor) > maxCursor {
		return nil, bad
	}
	var text placesText
	if err := json.Unmarshal(decoded, &text); err != nil || text.Cells == nil {
		return nil, bad
	}
	for name, own := range text.Cells {
		number, err := strconv.Atoi(name)
		if err != nil || number < 0 || number > maxCell || own != nil && *own == "" {
			return nil, bad
		}
		if own == nil {
			at[number] = place{ended: true}
		} else {
			at[number] = place{cursor: *own}
		}
	}
	return at, nil
}
