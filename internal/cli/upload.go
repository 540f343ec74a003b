package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queued/queued/client"
)

const (
	// maxBatchBytes is where a batch ends that has few, large events: half of what a server takes by default.
	maxBatchBytes = 4 << 20
	// maxKey is the longest idempotency key, in characters.
	maxKey = 255
)

// upload inserts the lines of a file, in batches.
type upload struct {
	conn      *client.Client
	template  client.NewEvent
	name      string
	keyField  []string // the parts of a JSON pointer; empty: no field is the key
	keyPrefix string
	skip      int64
	batch     int
	parallel  int

	isBegun atomic.Bool // a batch was sent, or is about to be

	stored atomic.Int64 // events
	done   atomic.Int64 // bytes of the lines that are stored or left out
	passed atomic.Int64 // bytes of the lines that were left out

	mu      sync.Mutex
	batches map[int64]int64 // batches that are stored, by the line before the first: their last line
	through int64           // all lines up to this one are stored
}

// lines are the events of consecutive lines.
type lines struct {
	after, last int64 // the number of the line before the first one, and that of the last one
	events      []client.NewEvent
	numbers     []int64 // the line of each event; empty lines have none
	bytes       int64   // the size of the lines, empty ones included
}

// run inserts all lines. Its first error stops it.
func (u *upload) run(ctx context.Context, input io.Reader) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	u.batches, u.through = make(map[int64]int64), u.skip
	batches := make(chan lines)
	var senders sync.WaitGroup
	for range u.parallel {
		senders.Go(func() {
			for {
				select {
				case batch, more := <-batches:
					if !more {
						return
					}
					u.isBegun.Store(true)
					if err := u.send(ctx, batch); err != nil {
						cancel(err)
						return
					}
					u.finish(batch)
				case <-ctx.Done():
					return
				}
			}
		})
	}
	// A read of standard input does not end with ctx: an upload that has ended does not wait for it.
	read := make(chan error, 1)
	go func() {
		defer close(batches)
		read <- u.split(ctx, input, batches)
	}()
	select {
	case err := <-read:
		senders.Wait()
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return err
	case <-ctx.Done():
		senders.Wait()
		return context.Cause(ctx)
	}
}

// split reads the lines and passes them on in batches. A wrong line ends it after the batch of those before.
func (u *upload) split(ctx context.Context, input io.Reader, batches chan<- lines) error {
	scanner := bufio.NewScanner(input)
	scanner.Buffer(make([]byte, 64<<10), maxEvent)
	batch, size := lines{after: u.skip, last: u.skip}, 0
	pass := func() error {
		if batch.last == batch.after {
			return nil
		}
		select {
		case batches <- batch:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		batch, size = lines{after: batch.last, last: batch.last}, 0
		return nil
	}
	n := int64(1)
	for ; scanner.Scan(); n++ {
		length := int64(len(scanner.Bytes())) + 1
		if n <= u.skip {
			u.passed.Add(length)
			u.done.Add(length)
			continue
		}
		text := bytes.TrimSpace(scanner.Bytes())
		if len(text) > 0 {
			event, err := u.event(n, bytes.Clone(text))
			if err != nil {
				return errors.Join(pass(), fmt.Errorf("%s:%d: the event %w", u.name, n, err))
			}
			if size += len(text); len(batch.events) == u.batch || size > maxBatchBytes && len(batch.events) > 0 {
				if err := pass(); err != nil {
					return err
				}
				size = len(text)
			}
			batch.events, batch.numbers = append(batch.events, event), append(batch.numbers, n)
		}
		batch.last = n
		batch.bytes += length
	}
	if err := scanner.Err(); err != nil {
		return errors.Join(pass(), fmt.Errorf("reading %s after line %d: %w", u.name, batch.last, err))
	}
	if count := n - 1; count < u.skip {
		return usagef("--skip is %d, but %s has only %d lines", u.skip, u.name, count)
	}
	return pass()
}

// event returns the event of a line.
func (u *upload) event(n int64, text []byte) (client.NewEvent, error) {
	event := u.template
	payload, err := objectOf(text)
	if err != nil {
		return event, err
	}
	event.Payload = payload
	switch {
	case u.keyPrefix != "":
		event.Key = u.keyPrefix + ":" + strconv.FormatInt(n, 10)
	case len(u.keyField) > 0:
		if event.Key, err = keyAt(payload, u.keyField); err != nil {
			return event, err
		}
	}
	return event, nil
}

// pointerOf returns the parts of a JSON pointer.
func pointerOf(text string) []string {
	if text == "" {
		return nil
	}
	parts := strings.Split(strings.TrimPrefix(text, "/"), "/")
	for i, part := range parts {
		parts[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(part)
	}
	return parts
}

// keyAt returns the text or number at a pointer.
func keyAt(value json.RawMessage, pointer []string) (string, error) {
	at := "/" + strings.Join(pointer, "/")
	for _, name := range pointer {
		switch value[0] {
		case '{':
			var members map[string]json.RawMessage
			if err := json.Unmarshal(value, &members); err != nil {
				return "", err
			}
			value = members[name]
		case '[':
			var elements []json.RawMessage
			if err := json.Unmarshal(value, &elements); err != nil {
				return "", err
			}
			i, err := strconv.Atoi(name)
			if err != nil || i < 0 || i >= len(elements) {
				return "", fmt.Errorf("has nothing at %s, which is to be its key", at)
			}
			value = elements[i]
		default:
			value = nil
		}
		if value = bytes.TrimSpace(value); len(value) == 0 {
			return "", fmt.Errorf("has nothing at %s, which is to be its key", at)
		}
	}
	key := string(value)
	switch {
	case value[0] == '"':
		if err := json.Unmarshal(value, &key); err != nil {
			return "", err
		}
	case strings.IndexByte("-0123456789", value[0]) < 0:
		return "", fmt.Errorf("has neither a text nor a number at %s, which is to be its key", at)
	}
	if n := len([]rune(key)); n == 0 || n > maxKey {
		return "", fmt.Errorf("has a text of %d characters at %s, which is to be its key; want 1 to %d", n, at, maxKey)
	}
	return key, nil
}

// send inserts a batch, in halves if it is too large for the server.
func (u *upload) send(ctx context.Context, batch lines) error {
	if len(batch.events) == 0 {
		return nil
	}
	_, err := u.conn.InsertBatch(ctx, batch.events)
	if middle := len(batch.events) / 2; middle > 0 && errors.Is(err, client.ErrTooLarge) {
		if err := u.send(ctx, lines{events: batch.events[:middle], numbers: batch.numbers[:middle]}); err != nil {
			return err
		}
		return u.send(ctx, lines{events: batch.events[middle:], numbers: batch.numbers[middle:]})
	}
	if errors.Is(err, client.ErrBatchNotAtomic) { // their keys are on several cells behind a gateway
		return u.sendEach(ctx, batch)
	}
	if err != nil {
		return u.nameLine(batch, err)
	}
	u.stored.Add(int64(len(batch.events)))
	return nil
}

// sendEach inserts the events of a batch each on its own. Those beside one that is refused are inserted: under their keys it can be repeated.
func (u *upload) sendEach(ctx context.Context, batch lines) error {
	_, errs, err := u.conn.InsertEach(ctx, batch.events)
	if err != nil {
		return u.nameLine(batch, err)
	}
	for i, one := range errs {
		switch {
		case one == nil:
			u.stored.Add(1)
		case err == nil:
			err = fmt.Errorf("%s:%d: %w", u.name, batch.numbers[i], one)
		}
	}
	return err
}

// nameLine adds to the server's error which line is meant, if it is about one event of the batch.
func (u *upload) nameLine(batch lines, err error) error {
	if e, ok := errors.AsType[*client.Error](err); ok {
		for _, field := range e.Errors {
			index, _, _ := strings.Cut(strings.TrimPrefix(field.Pointer, "#/events/"), "/")
			if i, noIndex := strconv.Atoi(index); noIndex == nil && i >= 0 && i < len(batch.numbers) {
				return fmt.Errorf("%s:%d: %w", u.name, batch.numbers[i], err)
			}
		}
	}
	if len(batch.numbers) == 1 {
		return fmt.Errorf("%s:%d: %w", u.name, batch.numbers[0], err)
	}
	return err
}

// finish notes that a batch is stored.
func (u *upload) finish(batch lines) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.done.Add(batch.bytes)
	u.batches[batch.after] = batch.last
	for last, has := u.batches[u.through]; has; last, has = u.batches[u.through] {
		delete(u.batches, u.through)
		u.through = last
	}
}

// report says how far the upload is. The size of the file is 0 if it is not known.
func (u *upload) report(elapsed time.Duration, size int64) string {
	stored := u.stored.Load()
	text := fmt.Sprintf("%s, %s", eventsOf(strconv.FormatInt(stored, 10)), rate(stored, elapsed))
	if size > 0 {
		text += fmt.Sprintf(", %.0f %% of the file", min(100, 100*float64(u.done.Load())/float64(size)))
	}
	return text
}

// reportWithBar is report for a terminal: with a bar, and with the time that is left.
func (u *upload) reportWithBar(elapsed time.Duration, size int64) string {
	if size <= 0 {
		return u.report(elapsed, size)
	}
	done, passed, stored := u.done.Load(), u.passed.Load(), u.stored.Load()
	text := fmt.Sprintf("%s %s, %s", bar(float64(done)/float64(size)), eventsOf(strconv.FormatInt(stored, 10)), rate(stored, elapsed))
	if sent := done - passed; sent > 0 && elapsed >= time.Second && done < size {
		left := time.Duration(float64(elapsed) * float64(size-done) / float64(sent))
		text += ", " + left.Round(time.Second).String() + " left"
	}
	return text
}

// resumption says how to go on after an error.
func (u *upload) resumption(c *PostCmd) string {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.isBegun.Load() {
		return "nothing was stored"
	}
	if c.KeyField != "" || c.KeyPrefix != "" {
		return fmt.Sprintf("lines up to %d are stored; run the command again to go on: what is stored is not stored twice, and --skip %d saves the time",
			u.through, u.through)
	}
	return fmt.Sprintf("lines up to %d are stored; to go on after them, add --skip %d; of the next %d lines some may be stored, too: "+
		"with --key-field or --key-prefix none is stored twice", u.through, u.through, u.parallel*u.batch)
}
