package pg

import (
	"cmp"
	"context"
	"sync"
	"time"
)

// defaultGather is short beside any statement.
const defaultGather = time.Millisecond

// LookUps gathers look-ups of single rows: all that are asked for while as many statements as there may be are under way are asked for by the next one. So a
// look-up takes two statements at most, however many others are made and however slow the database is. The zero value is not usable: set the first three fields.
type LookUps[K comparable, R any] struct {
	Find    func(ctx context.Context, keys []K) (R, error) // asks the database for keys, each of which is there once
	Most    int                                            // statements at a time
	Timeout time.Duration                                  // of a statement
	Gather  time.Duration                                  // how long a statement waits for further keys while another one is under way, so that calls of the same moment share it; zero: 1 ms

	mu      sync.Mutex
	running int             // statements
	next    *lookUpOf[K, R] // nil: nobody waits for a statement that has not begun
}

// A lookUpOf is a statement and what it has found.
type lookUpOf[K comparable, R any] struct {
	keys  map[K]bool
	done  chan struct{} // closed when found and err are there
	found R
	err   error
}

// Get returns what a statement has found that was begun after the call, and has asked for all of keys, maybe for others, too. When ctx ends first it fails with its error; the
// statement goes on for those who wait for it.
func (l *LookUps[K, R]) Get(ctx context.Context, keys ...K) (found R, err error) {
	l.mu.Lock()
	if l.next == nil {
		l.next = &lookUpOf[K, R]{keys: make(map[K]bool), done: make(chan struct{})}
	}
	own := l.next
	for _, key := range keys {
		own.keys[key] = true
	}
	switch {
	case l.running == 0:
		l.running++
		l.next = nil
		go l.run(context.WithoutCancel(ctx), own)
	case l.running < l.Most:
		l.running++
		go l.gather(context.WithoutCancel(ctx))
	}
	l.mu.Unlock()
	select {
	case <-own.done:
		return own.found, own.err
	case <-ctx.Done():
		return found, ctx.Err()
	}
}

// gather makes a statement of the keys that are there after Gather, as run does. There are none if a statement that ended meanwhile was followed by theirs.
func (l *LookUps[K, R]) gather(ctx context.Context) {
	Pause(ctx, cmp.Or(l.Gather, defaultGather))
	if one := l.takeNext(); one != nil {
		l.run(ctx, one)
	}
}

// takeNext returns the statement to make, and nil where nobody waits: then the caller, who makes statements, is to end.
func (l *LookUps[K, R]) takeNext() (one *lookUpOf[K, R]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if one, l.next = l.next, nil; one == nil {
		l.running--
	}
	return one
}

// run makes a statement, and then the next ones, until nobody waits.
func (l *LookUps[K, R]) run(ctx context.Context, one *lookUpOf[K, R]) {
	for ; one != nil; one = l.takeNext() {
		keys := make([]K, 0, len(one.keys))
		for key := range one.keys {
			keys = append(keys, key)
		}
		bounded, cancel := context.WithTimeout(ctx, l.Timeout)
		one.found, one.err = l.Find(bounded, keys)
		cancel()
		close(one.done)
	}
}
