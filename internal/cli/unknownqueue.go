package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/queued/queued/client"
)

// unknownQueueError says that a queue has neither settings nor events nor history nor statistics: its name is wrong probably.
type unknownQueueError struct {
	queue   string
	similar []string // names of queues that there are
}

func (e *unknownQueueError) Error() string {
	text := fmt.Sprintf("there is no queue %q: it has neither settings nor events, nor history", e.queue)
	if len(e.similar) > 0 {
		quoted := make([]string, len(e.similar))
		for i, name := range e.similar {
			quoted[i] = strconv.Quote(name)
		}
		text += "; did you mean " + strings.Join(quoted, " or ") + "?"
	}
	return text + "\n  \"queued queues\" lists the queues; the first event makes one, or \"queued queue set " + e.queue + "\""
}

const (
	statisticsKept = 7 * 24 * time.Hour // by the server
	maxCompared    = 1000               // how many queues are looked at for similar names
	maxSimilar     = 3
)

// checkKnown returns an unknownQueueError about a queue that the server knows nothing of. The server cannot tell it from an empty one, which has defaults.
func checkKnown(ctx context.Context, conn *client.Client, queue string) error {
	isKnown := false
	for q, err := range conn.FilterQueues(ctx, client.QueueFilter{NameContains: queue}) {
		if err != nil {
			return ignoreMissing(err)
		}
		if isKnown = q.Queue == queue; isKnown {
			return nil
		}
	}
	for _, err := range conn.ListHistory(ctx, client.HistoryFilter{Queue: queue, PageSize: 1}) {
		return ignoreMissing(err)
	}
	series, err := conn.QueueStats(ctx, queue, client.SeriesParams{From: time.Now().Add(-statisticsKept), Bucket: statisticsKept / 7})
	if err != nil || hasStatistics(series) {
		return ignoreMissing(err)
	}
	return &unknownQueueError{queue, similarQueues(ctx, conn, queue)}
}

// ofKnown yields values of a queue; if there are none, and the server knows nothing of the queue, its unknownQueueError. An empty queue stands for all queues.
func ofKnown[T any](ctx context.Context, conn *client.Client, queue string, values iter.Seq2[T, error]) iter.Seq2[T, error] {
	if queue == "" {
		return values
	}
	return func(yield func(T, error) bool) {
		isEmpty := true
		for value, err := range values {
			if isEmpty = false; !yield(value, err) {
				return
			}
		}
		if !isEmpty {
			return
		}
		if err := checkKnown(ctx, conn, queue); err != nil {
			yield(*new(T), err)
		}
	}
}

// ignoreMissing returns nil for the error that a cell behind a gateway does not answer: it may have the queue.
func ignoreMissing(err error) error {
	if errors.As(err, new(*client.MissingCellsError)) {
		return nil
	}
	return err
}

// hasStatistics reports whether something was in a queue, or ended in it. What a cell has that does not answer is not known.
func hasStatistics(series client.QueueSeries) bool {
	t := series.Totals
	return len(series.UnavailableCells) > 0 || t.Done+t.Failed+t.Expired+t.Cancelled > 0 || slices.ContainsFunc(series.Buckets, func(b client.SeriesBucket) bool {
		waited := 0
		for _, n := range []*int{b.Ready, b.Scheduled, b.Waiting, b.Leased, b.MaxReady} {
			if n != nil {
				waited += *n
			}
		}
		return waited > 0
	})
}

// similarQueues returns the names of queues that are similar to one, the nearest first.
func similarQueues(ctx context.Context, conn *client.Client, queue string) []string {
	var names []string
	compared := 0
	for q, err := range conn.ListQueues(ctx) {
		if compared++; err != nil || compared > maxCompared {
			break // a hint is not worth an error
		}
		if isSimilar(queue, q.Queue) {
			names = append(names, q.Queue)
		}
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(Distance(queue, a), Distance(queue, b)) })
	return names[:min(len(names), maxSimilar)]
}

// isSimilar reports whether a name may have been meant by another: few letters differ, or one has the other in it.
func isSimilar(meant, name string) bool {
	a, b := strings.ToLower(meant), strings.ToLower(name)
	return Distance(a, b) <= maxDistance(a) || len(a) >= minPart && strings.Contains(b, a) || len(b) >= minPart && strings.Contains(a, b)
}

// minPart is from how many letters on a name that is a part of another is similar to it.
const minPart = 3
