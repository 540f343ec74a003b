package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strconv"
	"time"
)

// silence is how long a stream may say nothing before its connection counts as broken. The server says something every 15 s.
const silence = 45 * time.Second

// StreamParams say which events to stream.
type StreamParams struct {
	LogFilter
	// From is where to begin; zero: at [Latest].
	From Place
}

// Stream returns events of the log as they are published, in order, until the loop or ctx ends. When the connection breaks it connects again,
// for as long as it takes, and goes on after the last event, so that nothing is missed and nothing comes twice. A later process
// goes on from the Position of the last event; see [After].
//
// It returns a [*Gap] as an error, after which the loop can go on. Any other error is the last thing it returns: that of ctx, or a refusal by
// the server.
func (c *Client) Stream(ctx context.Context, p StreamParams) iter.Seq2[PublishedEvent, error] {
	return c.stream(ctx, "/stream", p)
}

func (c *Client) stream(ctx context.Context, path string, p StreamParams) iter.Seq2[PublishedEvent, error] {
	return func(yield func(PublishedEvent, error) bool) {
		s := stream{client: c, path: path, params: p, yield: yield}
		for failures := 0; ; {
			before := s.last
			err := s.once(ctx)
			if errors.Is(err, errLoopEnded) {
				return
			}
			if cause := ctx.Err(); cause != nil {
				err = cause
			} else if err == nil || doubtOf(err) != refused {
				if failures++; s.last != before {
					failures = 0 // the stream has gone on, so it is worth coming back soon
				}
				if sleep(ctx, max(s.retry, pauseBefore(failures, err))) == nil {
					continue
				}
				err = ctx.Err()
			}
			yield(PublishedEvent{}, err)
			return
		}
	}
}

// errLoopEnded says that the caller's loop has ended.
var errLoopEnded = errors.New("the loop has ended")

// A stream is one loop over a stream, over all of its connections.
type stream struct {
	client *Client
	path   string
	params StreamParams
	yield  func(PublishedEvent, error) bool

	last  string        // the id that was received last
	retry time.Duration // how long the server asks to wait before connecting again
}

// once opens a connection and reads from it until it ends.
func (s *stream) once(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watchdog := time.AfterFunc(silence, func() { cancel(errNoAnswer) })
	defer watchdog.Stop()

	req := Request{Path: s.path, Query: queryOf(s.params), Header: http.Header{"Accept": {"text/event-stream"}}}
	if s.last != "" {
		req.Header.Set("Last-Event-ID", s.last)
	} else {
		s.params.From.addTo(req.Query)
	}
	r, err := s.client.newRequest(ctx, req, nil)
	if err != nil {
		return err
	}
	resp, err := s.client.http.Do(r)
	if err != nil {
		return causeOf(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		text, err := s.client.readAll(resp.Body)
		if err != nil {
			return causeOf(ctx, err)
		}
		return errorOf(http.MethodGet, s.path, resp, text)
	}
	frames := frameReader{lines: bufio.NewReader(resp.Body), limit: s.client.limits.maxResponse}
	for {
		f, err := frames.next()
		if err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return causeOf(ctx, err)
		}
		watchdog.Stop() // the loop may take as long as it wants with an event
		if err := s.take(f); err != nil {
			return err
		}
		watchdog.Reset(silence)
	}
}

// take hands a frame to the loop.
func (s *stream) take(f frame) error {
	if f.retry > 0 {
		s.retry = f.retry
	}
	switch {
	case len(f.data) == 0:
	case f.event == "gap" && isGap(f.data):
		var said struct{ Gap Gap }
		if err := json.Unmarshal(f.data, &said); err != nil {
			return fmt.Errorf("client: GET %s: %w: %w", s.path, errNotJSON, err)
		}
		s.last = f.id
		if !s.yield(PublishedEvent{}, &said.Gap) {
			return errLoopEnded
		}
		return nil
	default:
		var e PublishedEvent
		if err := json.Unmarshal(f.data, &e); err != nil {
			return fmt.Errorf("client: GET %s: %w: %w", s.path, errNotJSON, err)
		}
		if !s.yield(e, nil) {
			return errLoopEnded
		}
	}
	if f.id != "" {
		s.last = f.id
	}
	return nil
}

// isGap tells a gap from an event whose topic is named "gap".
func isGap(data []byte) bool { return bytes.HasPrefix(data, []byte(`{"gap":`)) }

// A frame is one event of Server-Sent Events.
type frame struct {
	id, event string
	data      []byte
	retry     time.Duration
}

// A frameReader reads Server-Sent Events (https://html.spec.whatwg.org/multipage/server-sent-events.html).
type frameReader struct {
	lines *bufio.Reader
	limit int64 // of one frame, in bytes
}

// next returns the next frame. One that the end of the stream cuts short is not returned.
func (r *frameReader) next() (frame, error) {
	var f frame
	hasData := false
	for size := int64(0); ; {
		line, err := r.line(&size)
		if err != nil {
			return frame{}, err
		}
		if len(line) == 0 {
			return f, nil
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(name) {
		case "id":
			f.id = string(value)
		case "event":
			f.event = string(value)
		case "data":
			if hasData {
				f.data = append(f.data, '\n')
			}
			f.data, hasData = append(f.data, value...), true
		case "retry":
			if ms, err := strconv.ParseUint(string(value), 10, 31); err == nil {
				f.retry = time.Duration(ms) * time.Millisecond
			}
		}
	}
}

// line returns a line without its end. It adds its length to size, which must stay below the limit.
func (r *frameReader) line(size *int64) ([]byte, error) {
	var line []byte
	for {
		part, err := r.lines.ReadSlice('\n')
		if *size += int64(len(part)); *size > r.limit {
			return nil, ErrResponseTooLarge
		}
		line = append(line, part...)
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r")), nil
	}
}

// A StreamToken lets a page in a browser stream the events of a filter, as GET /stream?token=…, without an API key.
type StreamToken struct {
	Token     string    `json:"token"`
	ExpiresAt time.Time `json:"expires_at"`
}

// CreateStreamToken makes a token for streams of these events, whose Topics are required. It is good for expiresIn; 0: 5 minutes. The server
// stores nothing of it.
func (c *Client) CreateStreamToken(ctx context.Context, filter LogFilter, expiresIn time.Duration) (StreamToken, error) {
	var token StreamToken
	_, err := c.Do(ctx, Request{
		Method: http.MethodPost, Path: "/stream/tokens", Body: streamTokenRequest{filter, duration(expiresIn)}, Repeatable: true,
	}, &token)
	return token, err
}

type streamTokenRequest struct {
	LogFilter
	ExpiresIn duration `json:"expires_in,omitzero"`
}
