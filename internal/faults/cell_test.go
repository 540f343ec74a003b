//go:build unix

package faults

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// cellCopied copies the database of cell 3. The original has given out ids since; what the copy gives out is of the same cell, and was given out by nobody.
func cellCopied(method copyMethod) scenario {
	return func(t *testing.T, b build, l *ledger, _ int) {
		t.Helper()
		server := Start(t, Config{})
		const cell = "QUEUED_CELL=3"
		q := startQueued(t, b, server.URL(), cell)
		seen := make(map[int64]bool)
		insert := func(q *queued) {
			t.Helper()
			own := &load{t: t, ledger: l, client: http.DefaultClient, addrs: []string{q.addr}}
			for _, id := range insertedIDs(t, own.newClient(1), 500) {
				if seen[id] || id>>45 != 3 {
					l.violated("the id %d was given out twice, or is of another cell", id)
				}
				seen[id] = true
			}
		}
		insert(q)
		bringUp := method(t, server)
		insert(q)
		_, _ = q.terminate()

		c := bringUp()
		url := c.server.urlOf(c.database)
		q = startQueued(t, b, url, cell)
		insert(q)
		if _, body, _ := q.get("/cell", time.Minute); !strings.Contains(body, `"cell":3,"is_home":false,"ids":{"first":105553116266496,"last":140737488355327,`) {
			l.violated("the copy says that it is %s", body)
		}
	}
}

func TestCopiesOfACellAreThatCell(t *testing.T) {
	t.Parallel()
	for name, method := range map[string]copyMethod{
		"a dump restored into another cluster":                   dumpToAnotherServer,
		"a dump restored into a new database of the same server": dumpToNewDatabase,
		"a dump restored into the same database":                 dumpToSameDatabase,
		"a clone by template":                                    clone,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runScenario(t, cellCopied(method), 1, 1)
		})
	}
}

// cellFailedOver promotes standbys of cell 3, which lack what its primary has given out.
func cellFailedOver(t *testing.T, b build, l *ledger, rounds int) {
	t.Helper()
	l.lossy = true
	pair := StartPair(t, Asynchronous, Config{})
	q := startQueued(t, b, pair.URL(), "QUEUED_CELL=3")
	b.breakDatabase(t, pair.Primary)
	d := startLoad(t, l, q)
	for i := range rounds {
		d.awaitInserts(20)
		pair.Primary.Kill()
		pair.Failover()
		d.awaitInsertAfter(time.Now())
		if i+1 < rounds {
			pair.Rejoin()
		}
	}
	d.awaitInserts(20) // by the promoted one, whose ids are what this is about
	d.finish(pair.Primary.AdminURL())
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range l.inserts {
		if id != 0 && id>>45 != 3 {
			t.Errorf("the id %d is of another cell", id)
		}
	}
	if len(l.inserts) < 40 {
		t.Errorf("%d events were inserted", len(l.inserts))
	}
}

func TestFailoversOfACellStayInItsRange(t *testing.T) {
	t.Parallel()
	runScenario(t, cellFailedOver, 1, 10)
}
