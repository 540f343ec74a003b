package load

import (
	"math/bits"
	"sync"
	"sync/atomic"
)

// Account knows of every event of one run, by its id, whether it was inserted, claimed and acked: one bit for each, so that
// tens of millions fit. It is safe for concurrent use.
type Account struct {
	mu    sync.RWMutex
	pages map[int64]*page

	inserted, acked                         atomic.Int64
	insertedTwice, claimedTwice, ackedTwice atomic.Int64
	failedInserts                           atomic.Int64 // events that may have been inserted or not
}

// pageBits is the ids that a page covers, as a power of two.
const pageBits = 16

// page holds the bits of neighbouring ids, by step.
type page [Ack + 1][1 << pageBits / 64]atomic.Uint64

// NewAccount makes an empty one.
func NewAccount() *Account { return &Account{pages: map[int64]*page{}} }

// set notes a step of an event and reports whether it was noted before.
func (a *Account) set(step Step, id int64) (before bool) {
	number := id >> pageBits
	a.mu.RLock()
	p := a.pages[number]
	a.mu.RUnlock()
	if p == nil {
		a.mu.Lock()
		if p = a.pages[number]; p == nil {
			p = new(page)
			a.pages[number] = p
		}
		a.mu.Unlock()
	}
	within := id & (1<<pageBits - 1)
	bit := uint64(1) << (within % 64)
	return p[step][within/64].Or(bit)&bit != 0
}

// Inserted notes an event that the server took.
func (a *Account) Inserted(id int64) {
	a.inserted.Add(1)
	if a.set(Insert, id) {
		a.insertedTwice.Add(1)
	}
}

// Claimed notes a claimed event. Leases are longer than any run, so no event may be claimed twice.
func (a *Account) Claimed(id int64) {
	if a.set(Claim, id) {
		a.claimedTwice.Add(1)
	}
}

// Acked notes an event that the server says is acked.
func (a *Account) Acked(id int64) {
	a.acked.Add(1)
	if a.set(Ack, id) {
		a.ackedTwice.Add(1)
	}
}

// Balance is how the events of a run add up: events inserted must have been acked, during the run or after it, or still exist.
type Balance struct {
	Inserted      int64 `json:"inserted"`       // events that the server said it has
	Acked         int64 `json:"acked"`          // events that it said are acked
	Remaining     int64 `json:"remaining"`      // events that exist, and of whose ack there was no response
	Unconfirmed   int64 `json:"unconfirmed"`    // events that came without a response to their insert; no more than inserts failed
	Lost          int64 `json:"lost"`           // events that are nowhere
	AckedTwice    int64 `json:"acked_twice"`    // events that were acked twice
	ClaimedTwice  int64 `json:"claimed_twice"`  // events claimed while they were leased
	InsertedTwice int64 `json:"inserted_twice"` // ids that two inserts got
	Unknown       int64 `json:"unknown"`        // events claimed that nobody inserted
}

// Add adds another's.
func (b *Balance) Add(o Balance) {
	b.Inserted += o.Inserted
	b.Acked += o.Acked
	b.Remaining += o.Remaining
	b.Unconfirmed += o.Unconfirmed
	b.Lost += o.Lost
	b.AckedTwice += o.AckedTwice
	b.ClaimedTwice += o.ClaimedTwice
	b.InsertedTwice += o.InsertedTwice
	b.Unknown += o.Unknown
}

// OK reports whether every event is where it should be.
func (b Balance) OK() bool {
	return b.Lost == 0 && b.AckedTwice == 0 && b.ClaimedTwice == 0 && b.InsertedTwice == 0 && b.Unknown == 0
}

// Balance adds up the run. It asks exists about each event that was inserted and
// never acked, up to a limit beyond which they count as lost: so many are not due to a broken connection.
func (a *Account) Balance(exists func(id int64) (bool, error)) (Balance, error) {
	const maxAsked = 10_000
	b := a.totals()
	asked := 0
	a.mu.RLock()
	defer a.mu.RUnlock()
	for number, p := range a.pages {
		for i := range p[Insert] {
			for missing := p[Insert][i].Load() &^ p[Ack][i].Load(); missing != 0; missing &= missing - 1 {
				if asked++; asked > maxAsked {
					b.Lost++
					continue
				}
				found, err := exists(number<<pageBits + int64(i*64+bits.TrailingZeros64(missing)))
				switch {
				case err != nil:
					return b, err
				case found:
					b.Remaining++
				default:
					b.Lost++
				}
			}
		}
	}
	return b, nil
}

// BalanceOf adds up a run whose events are too many to ask for each: there should be as many, in queues and
// history together, as were inserted.
func (a *Account) BalanceOf(existing int64) Balance {
	b := a.totals()
	b.Remaining = existing - b.Acked
	b.Lost = max(0, b.Inserted-existing)
	return b
}

// totals is the balance without the events that were not acked.
func (a *Account) totals() Balance {
	b := Balance{
		Inserted: a.inserted.Load(), Acked: a.acked.Load(),
		AckedTwice: a.ackedTwice.Load(), ClaimedTwice: a.claimedTwice.Load(), InsertedTwice: a.insertedTwice.Load(),
	}
	a.mu.RLock()
	defer a.mu.RUnlock()
	for _, p := range a.pages {
		for i := range p[Insert] {
			b.Unknown += int64(bits.OnesCount64((p[Claim][i].Load() | p[Ack][i].Load()) &^ p[Insert][i].Load()))
		}
	}
	// An insert without a response may have been carried out all the same.
	b.Unconfirmed = min(b.Unknown, a.failedInserts.Load())
	b.Unknown -= b.Unconfirmed
	return b
}
