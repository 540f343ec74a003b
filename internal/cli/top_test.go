package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/queued/queued/client"
)

// watched is a watch that has taken a look at some queues.
func watched(queues ...client.QueueStats) *watch {
	w := &watch{describe: func(err error) string { return new(Env).Describe(err, nil) }, title: "http://queue.example", sort: "ready", reports: make(map[string]reports)}
	w.add(look{At: time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC), Queues: queues})
	return w
}

// firstCells returns the first words of the rows of the table.
func firstCells(lines []string) (names []string) {
	at := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, "QUEUE") })
	for _, line := range lines[at+1:] {
		name, _, _ := strings.Cut(line, " ")
		if name == "" {
			break
		}
		names = append(names, name)
	}
	return names
}

func TestTopSortsByTheColumnThatKeysChoose(t *testing.T) {
	t.Parallel()
	w := watched(
		client.QueueStats{Queue: "a", Ready: 1, Scheduled: 3, Waiting: 1, Leased: 2, OldestReadyAge: time.Minute},
		client.QueueStats{Queue: "b", Ready: 2, Scheduled: 1, Waiting: 2, Leased: 3, DoneLastHour: 9},
		client.QueueStats{Queue: "c", Ready: 3, Scheduled: 2, Leased: 1},
	)
	for _, want := range []struct{ sort, order string }{
		{"ready", "c b a"}, {"scheduled", "a c b"}, {"waiting", "b a c"}, {"leased", "b a c"}, {"oldest", "a b c"}, {"done", "b a c"}, {"queue", "a b c"},
	} {
		if got := strings.Join(firstCells(w.lines(0, 0)), " "); w.sort != want.sort || got != want.order {
			t.Errorf("by %s the order is %s, want %s by %s", w.sort, got, want.order, want.sort)
		}
		w.press("s")
	}
	w.press("r")
	if got := strings.Join(firstCells(w.lines(0, 0)), " "); got != "a b c" {
		t.Errorf("reversed by ready the order is %s", got)
	}
}

func TestTopFitsItsTerminalAndScrolls(t *testing.T) {
	t.Parallel()
	var queues []client.QueueStats
	for n := range 50 {
		queues = append(queues, client.QueueStats{Queue: fmt.Sprintf("q%02d-%s", n, strings.Repeat("x", 100)), Ready: 100 - n})
	}
	w := watched(queues...)
	for _, size := range [][2]int{{80, 24}, {40, 10}, {1, 1}, {200, 100}, {20, 3}} {
		lines := w.lines(size[0], size[1])
		if len(lines) > size[1] {
			t.Errorf("%v: %d lines", size, len(lines))
		}
		for _, line := range lines {
			if utf8.RuneCountInString(line) > size[0] {
				t.Errorf("%v: the line %q", size, line)
			}
		}
	}
	for range 5 {
		w.press("down")
	}
	if got := firstCells(w.lines(80, 24))[0]; !strings.HasPrefix(got, "q05-") {
		t.Errorf("after five lines it begins with %s", got)
	}
	w.press("pageup")
	if got := firstCells(w.lines(80, 24))[0]; !strings.HasPrefix(got, "q00-") {
		t.Errorf("back at the top it begins with %s", got)
	}
	for range 20 {
		w.press("pagedown")
	}
	if got := firstCells(w.lines(80, 24)); len(got) != 1 || !strings.HasPrefix(got[0], "q49-") {
		t.Errorf("at the end it shows %q", got)
	}
}

func TestTopShowsChangesRatesAndFailures(t *testing.T) {
	t.Parallel()
	reported := time.Date(2026, 2, 3, 4, 5, 0, 0, time.UTC)
	process := client.Process{ID: "1", Version: "0.6.0", Posted: 100, UpdatedAt: reported, WaitingClaims: 2}
	w := watched(client.QueueStats{Queue: "mail", Ready: 10})
	text := func() string { return strings.Join(w.lines(200, 24), "\n") }
	w.add(look{Queues: []client.QueueStats{{Queue: "mail", Ready: 7, Paused: true, Estimated: true}}, Processes: []client.Process{process}})
	if got := text(); !strings.Contains(got, "mail   ~7     -3 ") || !strings.Contains(got, "paused") || !strings.Contains(got, "\n2 claims wait") {
		t.Errorf("it shows\n%s", got)
	}
	process.Posted, process.UpdatedAt = 150, reported.Add(10*time.Second)
	w.add(look{Processes: []client.Process{process}})
	w.add(look{Processes: []client.Process{process}}) // the same report again
	if got := text(); !strings.Contains(got, "5.0/s inserted") {
		t.Errorf("it shows\n%s", got)
	}
	w.add(look{UnavailableCells: []int{2, 5}})
	if got := text(); !strings.Contains(got, "\n! cell 2 does not answer: what it has is missing here\n! cell 5 does not answer") {
		t.Errorf("it shows\n%s", got)
	}
	w.add(look{})
	if got := text(); strings.Contains(got, "!") {
		t.Errorf("it shows\n%s", got)
	}
	w.failure = errors.New("no answer\x1b[31m")
	if got := text(); !strings.Contains(got, `! no answer\u001b[31m`) {
		t.Errorf("it shows\n%s", got)
	}
}

func TestKeysAreToldApart(t *testing.T) {
	t.Parallel()
	if got := strings.Join(keysOf("sj\x1b[A\x1b[6~q"), " "); got != "s j up pagedown q" {
		t.Errorf("got %s", got)
	}
	if got := keysOf("\x1b[99;5uq"); len(got) != 0 {
		t.Errorf("an unknown sequence is %q", got)
	}
	if !(&watch{}).press("\x03") || (&watch{}).press("s") {
		t.Error("Ctrl-C does not end it, or s does")
	}
}
