//go:build unix

package faults

import (
	"fmt"
	"syscall"
	"testing"
	"time"
)

// The broken builds of this file.
var (
	insertsRepeated = build{name: "a gateway that repeats what had no answer", edits: []edit{
		{"internal/gateway/proxy.go", "\t\"crypto/tls\"\n", "\t\"crypto/tls\"\n\t\"bytes\"\n\t\"time\"\n"},
		{"internal/gateway/proxy.go", "\tfor isFirst := true; ; isFirst = false {\n", `
	var body []byte
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body)
	}
	for isFirst := true; ; isFirst = time.Since(c.start) < 5*time.Second {
		if r.Body != nil {
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
		if time.Since(c.start) > 300*time.Millisecond {
			time.Sleep(50 * time.Millisecond)
		}
`},
		{"internal/gateway/proxy.go", "|| !isFirst || !isDial(err) ||", "|| !isFirst ||"},
	}}
	keysFollowAtOnce = build{name: "keyed inserts that follow their queue at once", edits: []edit{{
		"internal/gateway/placement.go", "if p.Keys != nil && p.Keys.Until.After(now) {", "if p.Keys != nil && now.IsZero() {",
	}}}
	keysInTurn = build{name: "keyed inserts into a spread queue that go to any of its cells", edits: []edit{{
		"internal/gateway/spread.go", "name += \"\\x00\" + hashedOf(key)", "name += \"\\x00\" + hashedOf(key) + time.Now().String()",
	}}}
	formerForgotten = build{name: "claims that do not ask former cells", edits: []edit{{
		"internal/gateway/placement.go", "func (g *Gateway) formerOf(p *placement) []*cell {\n", "func (g *Gateway) formerOf(p *placement) []*cell {\n\tif p != nil {\n\t\treturn nil\n\t}\n",
	}, {
		"internal/gateway/strays.go", "func (s *strays) of(queue string) []*cell {\n", "func (s *strays) of(queue string) []*cell {\n\tif queue != \"\" {\n\t\treturn nil\n\t}\n",
	}}}
)

// cellsDisturbed kills and freezes the processes of two cells, their servers and two gateways, in turn, and breaks the connections between a gateway and a cell.
func cellsDisturbed(t *testing.T, b build, l *ledger, rounds int) {
	t.Helper()
	servers := []*Server{Start(t, Config{}), Start(t, Config{})}
	f := startFleet(t, b, 1, servers[0].URL(), servers[1].URL())
	links := []*link{newLinkTo(t, "cell 0", f.cells[0].addr), newLinkTo(t, "cell 1", f.cells[1].addr)}
	f.addGateway(t, b, "0=http://"+links[0].proxy.Listen, "1=http://"+links[1].proxy.Listen)
	d := f.newLoad(t, l)
	d.start()
	// What is written when the process is stopped is committed and not answered.
	stopAndKill := func(q *queued) {
		f.signal(t, q, syscall.SIGSTOP)
		pause(100 * time.Millisecond)
		q.kill()
		q.start()
		q.awaitReady(startLimit)
	}
	freeze := func(q *queued, d time.Duration) {
		f.signal(t, q, syscall.SIGSTOP)
		pause(d)
		f.signal(t, q, syscall.SIGCONT)
	}
	faults := []func(i int){
		func(i int) { stopAndKill(f.cells[i]) },
		func(i int) { stopAndKill(f.gateways[i]) },
		func(i int) { freeze(f.cells[i], 8*time.Second) }, // after seven at most the gateways count it as away
		func(i int) { servers[i].Kill(); servers[i].Start() },
		func(i int) { freeze(f.gateways[i], 3*time.Second) },
		func(i int) { // what is under way is committed, and its answers are lost on the way to the gateway
			servers[i].Freeze()
			pause(100 * time.Millisecond)
			links[i].proxy.Stop()
			if err := links[i].proxy.Start(); err != nil {
				t.Error(err)
			}
			servers[i].Unfreeze()
		},
	}
	var longest time.Duration
	for round := range rounds {
		cell := round / len(faults) % 2
		if round%2 == 1 {
			cell = 1 - cell
		}
		d.awaitInserts(20)
		faults[round%len(faults)](cell)
		began := time.Now()
		longest = max(longest, d.awaitInsertOn(0, began), d.awaitInsertOn(1, began))
	}
	d.awaitInserts(20)
	t.Logf("%d faults: the first inserts on both cells succeeded within %v of the end of each", rounds, longest)
	d.finish(servers[0].AdminURL(), servers[1].AdminURL())
}

// signal sends a signal to a process and its children.
func (*fleet) signal(t *testing.T, q *queued, sig syscall.Signal) {
	t.Helper()
	if err := q.process.signalTree(sig); err != nil {
		t.Fatal(err)
	}
}

// queuesMoved moves queues between two cells and back under load, through one of two gateways, of which one is killed now and then.
func queuesMoved(t *testing.T, b build, l *ledger, rounds int) {
	t.Helper()
	servers := []*Server{Start(t, Config{}), Start(t, Config{})}
	f := startFleet(t, b, 2, servers[0].URL(), servers[1].URL())
	d := f.newLoad(t, l)
	on := []int{0, 0, 1, 1} // the cells of the queues
	d.start()
	for round := range rounds {
		d.awaitInserts(20)
		i := round % len(d.queues)
		on[i] = 1 - on[i]
		f.place(t, d.queues[i], on[i])
		if round%3 == 2 {
			f.gateways[1].kill()
			f.gateways[1].start()
			f.gateways[1].awaitReady(startLimit)
		}
	}
	d.awaitInserts(20)
	d.finish(servers[0].AdminURL(), servers[1].AdminURL())
}

// cellsComeAndGo has two gateways that are told of home alone. Home lists two other cells, queues are spread over them under load, cells are drained and take new queues again, and one of
// the gateways is killed now and then.
func cellsComeAndGo(t *testing.T, b build, l *ledger, rounds int) {
	t.Helper()
	servers := []*Server{Start(t, Config{}), Start(t, Config{}), Start(t, Config{})}
	f := startFleet(t, b, 0, servers[0].URL(), servers[1].URL(), servers[2].URL())
	for range 2 {
		f.addGateway(t, b, "0=http://"+f.cells[0].addr)
	}
	for cell := 1; cell <= 2; cell++ {
		f.list(t, cell, true)
	}
	d := f.newLoad(t, l)
	d.start()
	for round := range rounds {
		d.awaitInserts(20)
		cell := 1 + round/4%2
		other := 3 - cell
		switch round % 4 {
		case 0: // spread
			for i, queue := range d.queues {
				f.placeOn(t, queue, []string{"[0,1,2]", "[0,1]", "[1,2]"}[(round+i)%3])
			}
		case 1: // drained
			f.list(t, cell, false)
			for i, queue := range d.queues {
				f.placeOn(t, queue, []string{fmt.Sprintf("[0,%d]", other), "[0]", fmt.Sprintf("[%d]", other)}[i%3])
			}
		case 2: // back
			f.list(t, cell, true)
			for i, queue := range d.queues {
				f.placeOn(t, queue, []string{fmt.Sprintf("[%d]", cell), "[1,2]", "[0]"}[i%3])
			}
		default:
			f.gateways[1].kill()
			f.gateways[1].start()
			f.gateways[1].awaitReady(startLimit)
		}
	}
	d.awaitInserts(20)
	d.finish(servers[0].AdminURL(), servers[1].AdminURL(), servers[2].AdminURL())
}

// gatewaysOfDifferentAges has a gateway that home cannot be reached from, and that goes by old placements, while queues are moved through another one.
func gatewaysOfDifferentAges(t *testing.T, b build, l *ledger, rounds int) {
	t.Helper()
	servers := []*Server{Start(t, Config{}), Start(t, Config{}), Start(t, Config{})}
	f := startFleet(t, b, 1, servers[0].URL(), servers[1].URL(), servers[2].URL())
	home := newLinkTo(t, "home", f.cells[0].addr)
	f.addGateway(t, b, "0=http://"+home.proxy.Listen, "1=http://"+f.cells[1].addr, "2=http://"+f.cells[2].addr)
	d := f.newLoad(t, l)
	d.queues = d.queues[2:] // those of home cannot be reached through the gateway
	on := []int{1, 1, 2, 2}
	f.awaitPlaced(t, f.gateways[1]) // which goes by these while home is away
	d.start()
	for round := range rounds {
		d.awaitInserts(20)
		home.proxy.Stop()
		i := round % len(d.queues)
		on[i] = 3 - on[i]
		f.place(t, d.queues[i], on[i])
		began := time.Now()
		d.awaitInserts(50)
		// The new cell has events by the first gateway, the old one by the second.
		d.awaitInsertOn(1, began)
		d.awaitInsertOn(2, began)
		if err := home.proxy.Start(); err != nil {
			t.Fatal(err)
		}
	}
	d.awaitInserts(20)
	d.finish(servers[0].AdminURL(), servers[1].AdminURL(), servers[2].AdminURL())
}

func TestNothingIsLostWhenCellsAndGatewaysAreKilledAndFrozen(t *testing.T) {
	t.Parallel()
	runScenario(t, cellsDisturbed, 6, 100)
}

func TestNothingIsLostWhenQueuesAreMoved(t *testing.T) {
	t.Parallel()
	runScenario(t, queuesMoved, 6, 100)
}

func TestNothingIsLostWhenCellsComeAndGo(t *testing.T) {
	t.Parallel()
	runScenario(t, cellsComeAndGo, 4, 80)
}

func TestNothingIsLostByGatewaysOfDifferentAges(t *testing.T) {
	t.Parallel()
	runScenario(t, gatewaysOfDifferentAges, 2, 20)
}

func TestBrokenBuildWithRepeatedInsertsIsCaughtByKilledCells(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	expectViolation(t, cellsDisturbed, insertsRepeated, 12)
}

func TestBrokenBuildWithAnswerBeforeCommitIsCaughtByKilledCells(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	expectViolation(t, cellsDisturbed, answerBeforeCommit, 20)
}

func TestBrokenBuildWithKeysThatFollowAtOnceIsCaught(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	expectViolation(t, queuesMoved, keysFollowAtOnce, 12)
}

func TestBrokenBuildWithKeysInTurnIsCaught(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	expectViolation(t, cellsComeAndGo, keysInTurn, 12)
}

func TestBrokenBuildThatForgetsFormerCellsIsCaught(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	expectViolation(t, queuesMoved, formerForgotten, 6)
}

func TestBrokenBuildThatForgetsFormerCellsIsCaughtByGatewaysOfDifferentAges(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	expectViolation(t, gatewaysOfDifferentAges, formerForgotten, 4)
}
