package load

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
)

// Page is a page at /ui/ that a viewer has open, over a connection of its own.
type Page struct {
	connection *connection
	lines      *bufio.Reader
}

// OpenPage opens the stream that keeps a page at /ui/ up to date, such as queues/a. It must be closed.
func (t *Target) OpenPage(ctx context.Context, path string) (*Page, error) {
	c, lines, err := t.openStream(ctx, "/ui/live?page="+url.QueryEscape(path))
	if err != nil {
		return nil, err
	}
	return &Page{c, lines}, nil
}

// Next waits until the page is brought up to date. It fails when the page cannot be read, and when the stream ends.
func (p *Page) Next() error {
	for {
		line, err := p.lines.ReadSlice('\n')
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) { // of a long line the beginning is enough: the rest begins like no other
			return fmt.Errorf("the stream of a page ended: %w", err)
		}
		event, found := bytes.CutPrefix(line, []byte("event: "))
		switch {
		case !found:
		case string(event) == "parts\n":
			return nil
		default:
			return fmt.Errorf("the stream of a page has: %s", bytes.TrimSpace(event))
		}
	}
}

// Close ends the stream, and a call of Next that waits.
func (p *Page) Close() { p.connection.close() }
