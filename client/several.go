package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"
)

// A gateway in front of several cells answers a call about all queues, or about a queue of which several cells hold a part, with [ErrSeveralCells]. The methods of this package make the call of each of
// these cells then, and return one answer of theirs.

// Cell returns a client whose calls go to one cell behind a gateway. It has the connections of c, and is closed with it.
func (c *Client) Cell(number int) *Client {
	at := &Client{base: fmt.Sprintf("%s/cells/%d", c.base, number), key: c.key, agent: c.agent, http: c.http, limits: c.limits}
	if c.inserts != nil {
		at.inserts = &coalescer[NewEvent, Inserted]{c: at, alone: at.insertAlone, together: at.insertTogether}
	}
	if c.publications != nil {
		at.publications = &coalescer[NewPublication, Published]{c: at, alone: at.publishAlone, together: at.publishTogether}
	}
	return at
}

// part is Cell for a part of an answer.
func (c *Client) part(number int) *Client {
	at := c.Cell(number)
	at.isPart = true
	return at
}

// A MissingCellsError is returned beside an answer that was made of those of several cells: the part of some is missing, as they did not answer.
type MissingCellsError struct{ Cells []int }

// Error implements error.
func (e *MissingCellsError) Error() string {
	return fmt.Sprintf("the part of cells %v is missing, as they do not answer", e.Cells)
}

// missing returns err, or else a *MissingCellsError if cells are missing.
func missing(err error, cells []int) error {
	if err == nil && len(cells) > 0 {
		return &MissingCellsError{cells}
	}
	return err
}

// partsOf returns the cells that a call has to be made of, which failed with err because several have a part of what it is about; nil: that is not why.
func partsOf(err error) []int {
	var e *Error
	if errors.As(err, &e) && errors.Is(err, ErrSeveralCells) {
		return e.Cells
	}
	return nil
}

// isAway reports whether a call of a cell behind a gateway has failed because the cell does not answer.
func isAway(err error) bool { return cellOf(err) != nil && doubtOf(err) != refused }

// eachCell makes a call, and if several cells behind a gateway have a part of what it is about, the call of each, one after the other. use gets each answer. A cell that has nothing of what the call is about ([ErrNotFound]) is left out, unless none has. It ends with the first error, that of use included: what cells before have done
// stays done.
func eachCell[T any](c *Client, call func(*Client) (T, error), use func(answer T) error) error {
	answer, err := call(c)
	numbers := partsOf(err)
	if numbers == nil {
		if err == nil {
			err = use(answer)
		}
		return err
	}
	var absent error
	isThere := false
	for _, number := range numbers {
		answer, err := call(c.Cell(number))
		switch {
		case err == nil:
			isThere = true
			if err := use(answer); err != nil {
				return err
			}
		case errors.Is(err, ErrNotFound):
			absent = err
		default:
			return fmt.Errorf("cell %d: %w", number, err)
		}
	}
	if isThere {
		return nil
	}
	return absent
}

// sumOfCells makes a call as eachCell does, and returns the sum of what the cells have done, up to limit (0: there is none), which holds for all of them together.
func sumOfCells(c *Client, limit int, call func(c *Client, limit int) (int, error)) (sum int, err error) {
	errEnough := errors.New("that was the limit")
	err = eachCell(c, func(at *Client) (int, error) {
		left := limit
		if limit > 0 {
			left = limit - sum
		}
		return call(at, left)
	}, func(n int) error {
		if sum += n; limit > 0 && sum >= limit {
			return errEnough
		}
		return nil
	})
	switch {
	case errors.Is(err, errEnough):
		err = nil
	case err != nil && sum > 0:
		err = fmt.Errorf("%w (%d on the cells before)", err, sum)
	}
	return sum, err
}

// joined makes a call that only reads, and if several cells have a part, the call of each at once; join adds the answer of another cell to the first. cell is nil for the only one there is. It returns
// the cells whose part is missing, as they do not answer.
func joined[T any](c *Client, call func(at *Client, cell *int) (T, error), join func(into *T, other T)) (answer T, away []int, err error) {
	answer, err = call(c, nil)
	numbers := partsOf(err)
	if numbers == nil {
		return answer, nil, err
	}
	answers, errs := make([]T, len(numbers)), make([]error, len(numbers))
	var asking sync.WaitGroup
	for i, number := range numbers {
		asking.Go(func() { answers[i], errs[i] = call(c.part(number), &numbers[i]) })
	}
	asking.Wait()
	var failed, absent error
	isThere := false
	for i, number := range numbers {
		switch {
		case errs[i] == nil && !isThere:
			answer, isThere = answers[i], true
		case errs[i] == nil:
			join(&answer, answers[i])
		case isAway(errs[i]):
			away, failed = append(away, number), errs[i]
		case errors.Is(errs[i], ErrNotFound):
			absent = errs[i]
		default:
			return answer, nil, errs[i]
		}
	}
	if isThere {
		return answer, away, nil
	}
	return answer, nil, cmp.Or(failed, absent)
}

// An order says how the elements of a listing follow each other.
type order[T any] struct {
	compare func(a, b *T) int
	join    func(into *T, other T) // makes one element of two that are the same; nil: none are
	isWhole bool                   // the listing fails without the part of a cell
}

// listOfCells is listOf for a listing of which several cells may have a part: these are merged. It returns a *MissingCellsError for a cell that does not answer as soon as it knows, and goes on with the others.
func listOfCells[P, T any](ctx context.Context, c *Client, path string, params any, o order[T], open func(P) page[T]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		isFirst := true
		for item, err := range listOf(ctx, c, path, params, open) {
			if numbers := partsOf(err); numbers != nil && isFirst {
				merge(numbers, o, func(number int) iter.Seq2[T, error] { return listOf(ctx, c.part(number), path, params, open) })(yield)
				return
			}
			isFirst = false
			if !yield(item, err) {
				return
			}
		}
	}
}

// A head is the next element of a listing of one cell.
type head[T any] struct {
	next   func() (T, error, bool)
	stop   func()
	number int
	item   T
	err    error
	isOver bool
}

func (h *head[T]) advance() {
	item, err, isThere := h.next()
	h.item, h.err, h.isOver = item, err, !isThere || err != nil
}

// merge returns the listings of cells as one.
func merge[T any](numbers []int, o order[T], list func(number int) iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		heads := make([]*head[T], len(numbers))
		var asking sync.WaitGroup
		for i, number := range numbers {
			h := &head[T]{number: number}
			h.next, h.stop = iter.Pull2(list(number))
			defer h.stop()
			heads[i] = h
			asking.Go(h.advance) // the first pages at once
		}
		asking.Wait()
		var none T
		var failed error
		for {
			var first *head[T]
			for _, h := range heads {
				switch {
				case h.err != nil && (isAway(h.err) && !o.isWhole || errors.Is(h.err, ErrNotFound)):
					failed = h.err
					if h.err = nil; isAway(failed) {
						if failed = nil; !yield(none, &MissingCellsError{[]int{h.number}}) {
							return
						}
					}
				case h.err != nil:
					yield(none, fmt.Errorf("cell %d: %w", h.number, h.err))
					return
				case !h.isOver && (first == nil || o.compare(&h.item, &first.item) < 0):
					first = h
				}
			}
			if first == nil {
				break
			}
			item := first.item
			first.advance()
			for _, h := range heads {
				if o.join != nil && h != first && !h.isOver && h.err == nil && o.compare(&h.item, &item) == 0 {
					o.join(&item, h.item)
					h.advance()
				}
			}
			if !yield(item, nil) {
				return
			}
			failed = nil
		}
		if failed != nil { // no cell has anything of what was asked for
			yield(none, failed)
		}
	}
}

// The orders of listings.
var (
	byVT = order[Event]{compare: func(a, b *Event) int { return cmp.Or(a.VT.Compare(b.VT), cmp.Compare(a.ID, b.ID)) }}
	// byEventTS is that of history, newest first.
	byEventTS = order[Event]{compare: func(a, b *Event) int { return cmp.Or(b.EventTS.Compare(a.EventTS), cmp.Compare(b.ID, a.ID)) }}
	byAge     = order[Redrive]{compare: func(a, b *Redrive) int { return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(b.ID, a.ID)) }}
	byQueue   = order[QueueStats]{compare: func(a, b *QueueStats) int { return strings.Compare(a.Queue, b.Queue) }, join: joinQueueStats}
	byGroup   = order[Group]{compare: func(a, b *Group) int { return strings.Compare(a.Group, b.Group) }, join: joinGroup}
)

func joinQueueStats(into *QueueStats, q QueueStats) {
	into.Ready += q.Ready
	into.Scheduled += q.Scheduled
	into.Waiting += q.Waiting
	into.Leased += q.Leased
	into.OldestReadyAge = max(into.OldestReadyAge, q.OldestReadyAge)
	into.DoneLastHour += q.DoneLastHour
	into.FailedLastHour += q.FailedLastHour
	into.ExpiredLastHour += q.ExpiredLastHour
	into.Estimated = into.Estimated || q.Estimated
	into.Paused = into.Paused || q.Paused
	into.DeadLettersOf = union(into.DeadLettersOf, q.DeadLettersOf)
}

// joinGroup joins what cells say of one group: events that came before its queue was placed elsewhere are where it was.
func joinGroup(into *Group, g Group) {
	if into.Version == 0 { // nothing is set there
		into.Concurrency, into.Rate, into.Paused, into.HeldUntil, into.Version, into.UpdatedAt = g.Concurrency, g.Rate, g.Paused, g.HeldUntil, g.Version, g.UpdatedAt
	}
	into.Waiting += g.Waiting
	into.Admitted += g.Admitted
	into.Leased += g.Leased
	into.Scheduled += g.Scheduled
	into.OldestAt, into.NextAt = earliest(into.OldestAt, g.OldestAt), earliest(into.NextAt, g.NextAt)
	if into.BlockedBy == nil {
		into.BlockedBy = g.BlockedBy
	}
}

// union returns the texts that one of two lists has, sorted.
func union(a, b []string) []string {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}

// earliest returns the earlier of two times; nil: there is none.
func earliest(a, b *time.Time) *time.Time {
	if a == nil || b != nil && b.Before(*a) {
		return b
	}
	return a
}

// greatest returns the greater of two numbers; nil: there is none.
func greatest[T cmp.Ordered](a, b *T) *T {
	if a == nil || b != nil && *b > *a {
		return b
	}
	return a
}

// total returns the sum of two numbers; nil: there is none.
func total(a, b *int) *int {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	sum := *a + *b
	return &sum
}

// joinSorted adds elements to others, joining those that are the same, and returns all in order. No two of either are the same.
func joinSorted[T any](into, others []T, compare func(a, b *T) int, join func(into *T, other T)) []T {
	by := func(a, b T) int { return compare(&a, &b) }
	slices.SortFunc(into, by)
	for _, other := range others {
		at, isThere := slices.BinarySearchFunc(into, other, by)
		if isThere {
			join(&into[at], other)
		} else {
			into = slices.Insert(into, at, other)
		}
	}
	return into
}

// defaultPage is the size of a page, unless a call says so.
const defaultPage = 100

// collect returns what a listing returns before its error, or beside a *MissingCellsError.
func collect[T any](values iter.Seq2[T, error]) (all []T, err error) {
	var away []int
	for value, err := range values {
		var missing *MissingCellsError
		switch {
		case errors.As(err, &missing):
			away = append(away, missing.Cells...)
		case err != nil:
			return all, err
		default:
			all = append(all, value)
		}
	}
	return all, missing(nil, away)
}
