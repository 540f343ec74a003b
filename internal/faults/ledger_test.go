//go:build unix

package faults

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// ledger records the responses to all clients, and compares them with the database. It identifies events by the field n of their payload, because ids
// can come from a server that was lost.
type ledger struct {
	// lossy: an asynchronous failover may have lost acknowledged events. Then the ledger only checks that no id belongs to two events.
	lossy bool
	// clockSetBack: the database's clock may have been set back, so a lease may begin before the previous one.
	clockSetBack bool

	mu         sync.Mutex
	inserts    map[string]int64           // by n: the id of the successful insert, or 0 if unknown
	byID       map[int64]string           // the n of each acknowledged id
	leases     map[string][]*lease        // by n
	acked      map[string]map[string]bool // by n: the receipts of successful acks
	answers    map[string]int             // the number of each response, such as "POST /claim 200"
	slowest    map[string]time.Duration   // of each route
	lastInsert map[int64]time.Time        // by cell: time of the latest successful insert
	sent       map[string]time.Time       // by n: before the insert was sent first
	confirmed  map[int64]time.Time        // by id: when a client first knew that the event was inserted
	holds      []hold
	violations []string
	earlier    struct{ inserts, unknown, acks, again int } // in other databases
}

// lease is one claim as its client saw it. Times are the database's.
type lease struct {
	ID       int64       `json:"id"`
	Queue    string      `json:"queue"`
	Group    string      `json:"group"`
	Attempts int         `json:"attempts"`
	Receipt  string      `json:"receipt"`
	VT       time.Time   `json:"vt"`
	Claimed  []time.Time `json:"claimed"`
	Event    struct {
		N string `json:"n"`
	} `json:"event"`

	nacked bool      // or may be nacked: the lease may have ended early
	late   time.Time // when a slow worker acks it
}

func (l *lease) begin() time.Time { return l.Claimed[len(l.Claimed)-1] }

// hold is a time in which nothing of a group is claimed, as a client knows.
type hold struct {
	queue, group string
	from, until  time.Time
}

func newLedger() *ledger {
	return &ledger{
		inserts: map[string]int64{}, byID: map[int64]string{}, leases: map[string][]*lease{}, acked: map[string]map[string]bool{},
		answers: map[string]int{}, slowest: map[string]time.Duration{}, lastInsert: map[int64]time.Time{},
		sent: map[string]time.Time{}, confirmed: map[int64]time.Time{},
	}
}

// add adds the ledger of another database, to be reported with this one.
func (l *ledger) add(other *ledger) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.violations = append(l.violations, other.violations...)
	l.earlier.inserts += len(other.byID)
	l.earlier.unknown += len(other.inserts) - len(other.byID)
	l.earlier.acks += len(other.acked)
	for answer, n := range other.answers {
		l.answers[answer] += n
	}
	for route, took := range other.slowest {
		l.slowest[route] = max(l.slowest[route], took)
	}
	for _, leases := range other.leases {
		l.earlier.again += len(leases) - 1
	}
}

// violated records that an invariant does not hold.
func (l *ledger) violated(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.violations = append(l.violations, fmt.Sprintf(format, args...))
}

// inserting records that an event is about to be inserted.
func (l *ledger) inserting(n string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inserts[n] = 0
	l.sent[n] = time.Now()
}

// inserted records that an insert succeeded.
func (l *ledger) inserted(n string, id int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if before := l.inserts[n]; before != 0 && before != id && !l.lossy {
		l.violations = append(l.violations, fmt.Sprintf("the insert of the event %s was answered with the id %d, and repeated with %d", n, before, id))
	}
	l.inserts[n] = id
	if other, known := l.byID[id]; known && other != n {
		l.violations = append(l.violations, fmt.Sprintf("the inserts %[2]s and %[3]s got the same id %[1]d", id, other, n))
	}
	l.byID[id] = n
	if l.confirmed[id].IsZero() {
		l.confirmed[id] = time.Now()
	}
	l.lastInsert[id>>cellBits] = time.Now()
}

func (l *ledger) claimed(leases []*lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range leases {
		l.leases[e.Event.N] = append(l.leases[e.Event.N], e)
	}
}

// held records a hold of a group.
func (l *ledger) held(h hold) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holds = append(l.holds, h)
}

// ackSucceeded records that an ack succeeded.
func (l *ledger) ackSucceeded(e *lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.acked[e.Event.N] == nil {
		l.acked[e.Event.N] = map[string]bool{}
	}
	l.acked[e.Event.N][e.Receipt] = true
}

func (l *ledger) answered(route string, status int, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answers[fmt.Sprintf("%s %d", route, status)]++
	l.slowest[route] = max(l.slowest[route], took)
}

// counted returns the number of each response so far.
func (l *ledger) counted() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.answers)
}

// counts returns how many inserts and acks have succeeded.
func (l *ledger) counts() (inserts, acks int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.byID), len(l.acked)
}

// anyCell stands for all cells.
const anyCell = -1

// lastInserted returns when an insert last succeeded on a cell.
func (l *ledger) lastInserted(cell int) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if cell != anyCell {
		return l.lastInsert[int64(cell)]
	}
	return slices.MaxFunc(append(slices.Collect(maps.Values(l.lastInsert)), time.Time{}), time.Time.Compare)
}

// row is an event in the database.
type row struct {
	id        int64
	outcome   string     // "" while it is in the queue
	lastClaim *time.Time // time of the latest claim
}

// check compares the responses to the clients with the databases at urls: one, or those of cells, in the order of their numbers.
func (l *ledger) check(t *testing.T, urls ...string) {
	t.Helper()
	found := map[string][]row{}
	ids := map[int64]string{}
	for cell, url := range urls {
		l.read(t, url, func(n string, r row) {
			found[n] = append(found[n], r)
			if other, known := ids[r.id]; known {
				l.violated("the id %d belongs to the events %s and %s in the database", r.id, other, n)
			}
			ids[r.id] = n
			if len(urls) > 1 && r.id>>cellBits != int64(cell) {
				l.violated("the id %d of the event %s is in the database of cell %d", r.id, n, cell)
			}
		})
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	note := func(format string, args ...any) { l.violations = append(l.violations, fmt.Sprintf(format, args...)) }
	for id, n := range l.byID {
		if other, known := ids[id]; known && other != n {
			note("the id %d was returned for the event %s, but belongs to %s", id, n, other)
		}
	}
	if l.lossy {
		return
	}
	for n, id := range l.inserts {
		switch rows := found[n]; {
		case len(rows) > 1:
			note("the event %s is in the database %d times: %v", n, len(rows), rows)
		case id != 0 && len(rows) == 0:
			note("the event %s was acknowledged with the id %d and is lost", n, id)
		case id != 0 && rows[0].id != id:
			note("the event %s was acknowledged with the id %d, but has the id %d", n, id, rows[0].id)
		}
	}
	for n, receipts := range l.acked {
		if len(receipts) > 1 {
			note("the event %s was finished by %d receipts: %v", n, len(receipts), receipts)
		}
		rows := found[n]
		if len(rows) != 1 {
			continue // noted above
		}
		if rows[0].outcome != "done" {
			note("the event %s was acked, but its outcome is %q", n, rows[0].outcome)
		}
		for _, e := range l.leases[n] {
			if receipts[e.Receipt] && (rows[0].lastClaim == nil || !rows[0].lastClaim.Equal(e.begin())) {
				note("the event %s was finished by the receipt %s, though it was claimed again at %v", n, e.Receipt, rows[0].lastClaim)
			}
		}
	}
	for n, leases := range l.leases {
		if l.inserts[n] == 0 && len(found[n]) == 0 {
			note("the event %s was claimed, but is not in the database", n)
		}
		// By attempts, not by time: the clock may have been set back.
		slices.SortFunc(leases, func(a, b *lease) int { return a.Attempts - b.Attempts })
		for i, e := range leases[1:] {
			before := leases[i]
			if before.nacked || l.clockSetBack && e.begin().Before(before.begin()) {
				continue
			}
			if e.begin().Before(before.VT) {
				note("the event %s was leased with the receipt %s from %v, but the lease of %s lasted until %v", n, e.Receipt, e.begin(), before.Receipt, before.VT)
			}
		}
	}
}

// read calls add for each event of a load in the database at url.
func (l *ledger) read(t *testing.T, url string, add func(n string, r row)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	rows, err := conn.Query(ctx, `
		select e.event ->> 'n', e.id, '', e.claimed[cardinality(e.claimed)] from agent.event e where e.event ? 'n'
		union all
		select h.event ->> 'n', h.id, h.outcome, h.claimed[cardinality(h.claimed)] from agent.event_hist h where h.event ? 'n'`)
	if err != nil {
		t.Fatal(err)
	}
	var n string
	var r row
	if _, err := pgx.ForEachRow(rows, []any{&n, &r.id, &r.outcome, &r.lastClaim}, func() error {
		add(n, r)
		r.lastClaim = nil
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// report logs the counts, and fails the test if an invariant was violated.
func (l *ledger) report(t *testing.T) {
	t.Helper()
	inserts, acks := l.counts()
	l.mu.Lock()
	defer l.mu.Unlock()
	inserts, acks = inserts+l.earlier.inserts, acks+l.earlier.acks
	unknown, again := len(l.inserts)-len(l.byID)+l.earlier.unknown, l.earlier.again
	for _, leases := range l.leases {
		again += len(leases) - 1
	}
	t.Logf("%d inserts succeeded, %d are unknown, %d events acked, %d claimed again; responses %v; slowest %v", inserts, unknown, acks, again, l.answers, l.slowest)
	const most = 20
	for i, v := range l.violations {
		if i == most {
			t.Errorf("… and %d more", len(l.violations)-most)
			break
		}
		t.Error(v)
	}
}

// summary describes the violations.
func (l *ledger) summary() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprintf("%d violations, such as: %s", len(l.violations), strings.Join(l.violations[:min(2, len(l.violations))], "; "))
}

func (l *ledger) clean() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.violations) == 0
}
