package workloads

import (
	"math/bits"
	"sync"
	"sync/atomic"
)

// ledger knows of every event of one run, by its id, what became of it: two bits per mark and id, so that
// tens of millions fit. It is safe for concurrent use.
type ledger struct {
	mu    sync.RWMutex
	pages map[int64]*page

	posted, acked                         atomic.Int64
	postedTwice, claimedTwice, ackedTwice atomic.Int64
	failedPosts                           atomic.Int64 // events that may have been posted or not
}

// pageBits is the ids that a page covers, as a power of two.
const pageBits = 16

// page holds the marks of neighbouring ids.
type page struct {
	marks [markKinds][1 << pageBits / 64]atomic.Uint64
}

type mark int

const (
	markPosted mark = iota
	markClaimed
	markAcked
	markKinds
)

func newLedger() *ledger { return &ledger{pages: map[int64]*page{}} }

// set marks an event and reports whether it bore that mark already.
func (l *ledger) set(m mark, id int64) (already bool) {
	number := id >> pageBits
	l.mu.RLock()
	p := l.pages[number]
	l.mu.RUnlock()
	if p == nil {
		l.mu.Lock()
		if p = l.pages[number]; p == nil {
			p = new(page)
			l.pages[number] = p
		}
		l.mu.Unlock()
	}
	within := id & (1<<pageBits - 1)
	bit := uint64(1) << (within % 64)
	return p.marks[m][within/64].Or(bit)&bit != 0
}

// post notes an event that the server took.
func (l *ledger) post(id int64) {
	l.posted.Add(1)
	if l.set(markPosted, id) {
		l.postedTwice.Add(1)
	}
}

// claim notes a claimed event. Leases are longer than any run, so a second claim breaks the first one's.
func (l *ledger) claim(id int64) {
	if l.set(markClaimed, id) {
		l.claimedTwice.Add(1)
	}
}

// ack notes an event that the server says is finished.
func (l *ledger) ack(id int64) {
	l.acked.Add(1)
	if l.set(markAcked, id) {
		l.ackedTwice.Add(1)
	}
}

// Account is how the events of a run add up: what was posted must have been acked, be it by the clean-up after
// the run, or be there still.
type Account struct {
	Posted       int64 `json:"posted"`        // events the server said it has
	Acked        int64 `json:"acked"`         // events it said are finished, those of the clean-up included
	Remaining    int64 `json:"remaining"`     // events found in the queue or in history that no answer spoke for
	Unknown      int64 `json:"unknown"`       // events that came without an answer to their post; no more than posts failed
	Lost         int64 `json:"lost"`          // events that are nowhere
	AckedTwice   int64 `json:"acked_twice"`   // events that were finished twice
	ClaimedTwice int64 `json:"claimed_twice"` // events claimed while their lease ran
	PostedTwice  int64 `json:"posted_twice"`  // ids that two posts were given
	Strangers    int64 `json:"strangers"`     // events claimed that nobody posted
}

// OK says whether every event is where it should be.
func (a Account) OK() bool {
	return a.Lost == 0 && a.AckedTwice == 0 && a.ClaimedTwice == 0 && a.PostedTwice == 0 && a.Strangers == 0
}

// settle adds up the run after its clean-up. It asks exists about each event that was posted and
// never acked (nil: about none), up to a limit beyond which they count as lost: so many are not the doing of a broken connection.
func (l *ledger) settle(exists func(id int64) (bool, error)) (Account, error) {
	const maxAsked = 10_000
	a := Account{
		Posted: l.posted.Load(), Acked: l.acked.Load(),
		AckedTwice: l.ackedTwice.Load(), ClaimedTwice: l.claimedTwice.Load(), PostedTwice: l.postedTwice.Load(),
	}
	asked := 0
	l.mu.RLock()
	defer l.mu.RUnlock()
	for number, p := range l.pages {
		for i := range p.marks[markPosted] {
			posted, acked := p.marks[markPosted][i].Load(), p.marks[markAcked][i].Load()
			a.Strangers += int64(bits.OnesCount64((p.marks[markClaimed][i].Load() | acked) &^ posted))
			if exists == nil {
				continue
			}
			for missing := posted &^ acked; missing != 0; missing &= missing - 1 {
				if asked++; asked > maxAsked {
					a.Lost++
					continue
				}
				id := number<<pageBits + int64(i*64+bits.TrailingZeros64(missing))
				found, err := exists(id)
				switch {
				case err != nil:
					return a, err
				case found:
					a.Remaining++
				default:
					a.Lost++
				}
			}
		}
	}
	// A post whose answer did not come may have been carried out all the same.
	a.Unknown = min(a.Strangers, l.failedPosts.Load())
	a.Strangers -= a.Unknown
	return a, nil
}

// count adds up a run whose events are too many to ask for each: there should be as many, in queues and
// history together, as were put in.
func (l *ledger) count(there int64) Account {
	a, _ := l.settle(nil)
	a.Remaining = there - a.Acked
	a.Lost = max(0, a.Posted-there)
	return a
}
