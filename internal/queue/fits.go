package queue

import (
	"cmp"
	"sync"
)

// fits remembers how many events of the queues with large payloads one claim may ask for, so that what it finds stays
// within maxFlushBytes.
type fits struct {
	mu      sync.Mutex
	byQueue map[string]int // less than MaxBatch
}

// get returns the most events of a queue that one claim may ask for.
func (f *fits) get(queue string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return cmp.Or(f.byQueue[queue], MaxBatch)
}

// learn notes that n events were as many as fit, or that they all fitted.
func (f *fits) learn(queue string, n int, overflowed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch limit, limited := f.byQueue[queue]; {
	case overflowed:
		if f.byQueue == nil {
			f.byQueue = make(map[string]int)
		}
		f.byQueue[queue] = n
		forgetAny(f.byQueue, maxRemembered, queue)
	case !limited:
	case 2*n >= MaxBatch:
		delete(f.byQueue, queue)
	default:
		f.byQueue[queue] = max(limit, 2*n)
	}
}

// maxRemembered is how many queues something is remembered of that is soon learnt anew.
const maxRemembered = 1000

// forgetAny takes entries out of m, but not that of queue, until there are at most so many.
func forgetAny[V any](m map[string]V, most int, queue string) {
	for other := range m {
		if len(m) <= most {
			return
		}
		if other != queue {
			delete(m, other)
		}
	}
}
