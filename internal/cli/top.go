package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/queued/queued/client"
)

// TopCmd watches queues.
type TopCmd struct {
	server   `embed:""`
	Interval time.Duration `short:"d" default:"2s" placeholder:"DURATION" min:"100ms" help:"The time between two looks (default 2s)."`
	Looks    int           `short:"n" placeholder:"N" min:"1" help:"End after so many looks; without a terminal 1 if it is not given."`
	Sort     string        `enum:"ready,scheduled,waiting,leased,oldest,done,queue" default:"ready" help:"What to sort by: ready, scheduled, waiting, leased, oldest, done or queue."`
}

// Help returns the text below the usage.
func (*TopCmd) Help() string {
	return examples(`queued top`, `queued top --sort oldest -d 500ms`, `queued top -n 10 -d 1m -o jsonl >>depth.jsonl`) + `
Keys: q ends it, s sorts by the next column, r reverses the order, j and k or the arrows scroll, space looks at once.
+/- is the change of the ready events since the look before; rates are of all processes together.
It goes on while the server restarts, for --retry-for; on a terminal until it is ended unless that is given. It goes on while a cell behind a gateway is away, which it names.
`
}

// maxQuery bounds a call of a look on a terminal, which shows that a server does not answer.
const maxQuery = 10 * time.Second

// look is the state that top has read at one time.
type look struct {
	At        time.Time           `json:"at"`
	Queues    []client.QueueStats `json:"queues"`
	Processes []client.Process    `json:"processes"`
	// UnavailableCells are, of the answers of a gateway, the cells whose part is missing.
	UnavailableCells []int `json:"unavailable_cells,omitzero"`
}

// misses reports whether err says that cells are away, and notes these.
func (l *look) misses(err error) bool {
	var away []int
	if missing, ok := errors.AsType[*client.MissingCellsError](err); ok {
		away = missing.Cells
	} else if answer, ok := errors.AsType[*client.Error](err); ok && answer.Code == "cell_unavailable" && answer.Cell != nil {
		away = []int{*answer.Cell}
	}
	l.UnavailableCells = append(l.UnavailableCells, away...)
	slices.Sort(l.UnavailableCells)
	l.UnavailableCells = slices.Compact(l.UnavailableCells)
	return len(away) > 0
}

// Run shows the queues until it is interrupted, which is no error.
func (c *TopCmd) Run(ctx context.Context, env *Env) error {
	screen, connect := openScreen(env), c.client
	isLive := screen != nil && env.format(c.Output) == formatTable
	if isLive {
		connect = func() (*client.Client, error) {
			return c.connect(client.Config{Timeout: min(c.Timeout, maxQuery), RetryFor: -1}, patience{}) // the next look is a retry
		}
	}
	conn, err := connect()
	if err != nil {
		return err
	}
	defer conn.Close()
	watch := &watch{describe: func(err error) string { return env.Describe(err, nil) }, title: c.URL, sort: c.Sort, reports: make(map[string]reports)}
	if isLive {
		err = c.live(ctx, conn, watch, screen)
	} else {
		err = c.print(ctx, env, conn, watch)
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// take takes a look.
func take(ctx context.Context, conn *client.Client) (look, error) {
	l := look{At: time.Now(), Queues: []client.QueueStats{}}
	for q, err := range conn.ListQueues(ctx) {
		if l.misses(err) {
			continue
		}
		if err != nil {
			return l, err
		}
		l.Queues = append(l.Queues, q)
	}
	var err error
	if l.Processes, err = conn.ListProcesses(ctx); errors.Is(err, client.ErrForbidden) || l.misses(err) {
		err = nil // a key for some queues may not ask this; processes of a cell that is away are not seen
	}
	return l, err
}

// print writes each look below the one before.
func (c *TopCmd) print(ctx context.Context, env *Env, conn *client.Client, w *watch) error {
	for n := 1; ; n++ {
		l, err := take(ctx, conn)
		switch {
		case err != nil:
		case env.format(c.Output) == formatTable:
			w.add(l)
			_, err = io.WriteString(env.Stdout, strings.Join(w.lines(env.width(), 0), "\n")+"\n\n")
		default:
			err = json.NewEncoder(env.Stdout).Encode(l)
		}
		if err != nil || n >= max(1, c.Looks) {
			return err
		}
		select {
		case <-time.After(c.Interval):
		case <-ctx.Done():
			return nil
		}
	}
}

// resizeInterval is how soon a terminal of another size is noticed. There is no signal for that on every system.
const resizeInterval = 250 * time.Millisecond

// live shows the latest look on a screen, and fails when all looks of --retry-for have failed, if that is given.
func (c *TopCmd) live(ctx context.Context, conn *client.Client, w *watch, s *screen) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := s.begin(); err != nil {
		return err
	}
	defer s.end()
	type result struct {
		look
		err error
	}
	results, again := make(chan result), make(chan struct{}, 1)
	go func() {
		for {
			l, err := take(ctx, conn)
			select {
			case results <- result{l, err}:
			case <-ctx.Done():
				return
			}
			select {
			case <-time.After(c.Interval):
			case <-again:
			case <-ctx.Done():
				return
			}
		}
	}()
	resize := time.NewTicker(resizeInterval)
	defer resize.Stop()
	for looks, seen := 0, time.Now(); ; {
		if err := s.draw(w.lines); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case r := <-results:
			if w.failure = r.err; r.err == nil {
				w.add(r.look)
				seen = time.Now()
			} else if c.RetryFor != nil && time.Since(seen) >= *c.RetryFor {
				return r.err
			}
			if looks++; looks == c.Looks {
				return s.draw(w.lines)
			}
		case key, ok := <-s.keys:
			if !ok || w.press(key) {
				return nil
			}
			if key == " " {
				select {
				case again <- struct{}{}:
				default:
				}
			}
		case <-resize.C:
		}
	}
}

// watch is the state of the screen of top. It is not safe for concurrent use.
type watch struct {
	title      string
	sort       string
	isReversed bool
	first      int // row of the table that is shown first
	failure    error
	describe   func(error) string

	latest, before *look
	reports        map[string]reports // of each process, by its id
}

// reports are the last two of a process, which makes one every few seconds.
type reports struct{ before, latest client.Process }

func (w *watch) add(l look) {
	w.before, w.latest = w.latest, &l
	for _, p := range l.Processes {
		r, known := w.reports[p.ID]
		switch {
		case !known:
			r = reports{p, p}
		case p.UpdatedAt.After(r.latest.UpdatedAt):
			r = reports{r.latest, p}
		}
		w.reports[p.ID] = r
	}
}

// sortings are the columns that a watch can be sorted by, in their order.
var sortings = []string{"queue", "ready", "scheduled", "waiting", "leased", "oldest", "done"}

// press executes the command of a key, and reports whether that is the end.
func (w *watch) press(key string) (end bool) {
	switch key {
	case "q", "Q", "\x03", "\x04": // Ctrl-C and Ctrl-D, which the terminal passes on
		return true
	case "s":
		w.sort = sortings[(slices.Index(sortings, w.sort)+1)%len(sortings)]
		w.first = 0
	case "r":
		w.isReversed = !w.isReversed
	case "j", "down":
		w.first++
	case "k", "up":
		w.first--
	case "pagedown":
		w.first += 10
	case "pageup":
		w.first -= 10
	}
	return false
}

// sorted returns the queues in the order that is wanted: the largest first, or by name.
func (w *watch) sorted() []client.QueueStats {
	queues := slices.Clone(w.latest.Queues)
	slices.SortStableFunc(queues, func(a, b client.QueueStats) int {
		order := 0
		switch w.sort {
		case "ready":
			order = cmp.Compare(b.Ready, a.Ready)
		case "scheduled":
			order = cmp.Compare(b.Scheduled, a.Scheduled)
		case "waiting":
			order = cmp.Compare(b.Waiting, a.Waiting)
		case "leased":
			order = cmp.Compare(b.Leased, a.Leased)
		case "oldest":
			order = cmp.Compare(b.OldestReadyAge, a.OldestReadyAge)
		case "done":
			order = cmp.Compare(b.DoneLastHour, a.DoneLastHour)
		}
		if order = cmp.Or(order, cmp.Compare(a.Queue, b.Queue)); w.isReversed {
			order = -order
		}
		return order
	})
	return queues
}

// lines returns the screen, at most width characters wide and height lines high; 0: as much as there is.
func (w *watch) lines(width, height int) []string {
	status := "q quit   s sort: " + w.sort + "   r reverse   j k scroll   space look"
	if w.failure != nil {
		status = "! " + strings.ReplaceAll(w.describe(w.failure), "\n", " ")
	}
	if w.latest == nil {
		return fit([]string{"queued " + w.title, "", status}, width)
	}
	lines := append(w.summary(), "")
	var text strings.Builder
	queues := w.sorted()
	w.first = max(0, min(w.first, len(queues)-1))
	shown := queues[w.first:]
	if height > 0 {
		shown = shown[:min(len(shown), max(1, height-len(lines)-3))] // the titles, a gap and the status
	}
	rows := make([][]string, len(shown))
	for i, q := range shown {
		rows[i] = w.row(q)
	}
	_ = writeTable(&text, columns("QUEUE…", "READY", "+/-", "SCHEDULED", "WAITING", "LEASED", "OLDEST", "DONE 1H", "FAILED 1H", "EXPIRED 1H", ""), rows, width) // to memory
	lines = append(lines, strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")...)
	if height > 0 {
		if more := len(queues) - w.first - len(shown); more > 0 {
			status = fmt.Sprintf("%d more below   ", more) + status
		}
		lines = append(lines, "", status)
		lines = lines[:min(len(lines), height)]
	}
	return fit(lines, width)
}

// row returns the row of a queue.
func (w *watch) row(q client.QueueStats) []string {
	cells := queuesView.row(q)
	change := ""
	if w.before != nil {
		for _, old := range w.before.Queues {
			if old.Queue == q.Queue && old.Ready != q.Ready {
				change = fmt.Sprintf("%+d", q.Ready-old.Ready)
			}
		}
	}
	paused := ""
	if q.Paused {
		paused = "paused"
	}
	return []string{cells[0], cells[1], change, cells[2], cells[3], cells[4], cells[5], cells[6], cells[7], cells[8], paused}
}

// summary returns the lines above the table.
func (w *watch) summary() []string {
	l := w.latest
	var ready, scheduled, waiting, leased int
	for _, q := range l.Queues {
		ready, scheduled, waiting, leased = ready+q.Ready, scheduled+q.Scheduled, waiting+q.Waiting, leased+q.Leased
	}
	first := fmt.Sprintf("queued %s   %s", w.title, moment(l.At))
	if n := len(l.Processes); n == 1 {
		first += "   1 process, version " + printable(l.Processes[0].Version)
	} else if n > 1 {
		first += fmt.Sprintf("   %d processes", n)
	}
	queues := fmt.Sprintf("%d queues", len(l.Queues))
	if len(l.Queues) == 1 {
		queues = "1 queue"
	}
	lines := []string{first, fmt.Sprintf("%s: %d ready, %d scheduled, %d waiting, %d leased", queues, ready, scheduled, waiting, leased)}
	if rates := w.rates(); rates != "" {
		lines = append(lines, rates)
	}
	for _, number := range l.UnavailableCells {
		lines = append(lines, fmt.Sprintf("! cell %d does not answer: what it has is missing here", number))
	}
	return lines
}

// rates returns the rates of all processes, per second, by their last two reports; empty if it is not known.
func (w *watch) rates() string {
	if len(w.latest.Processes) == 0 {
		return ""
	}
	var inserted, claimed, acked, nacked, failed float64
	var waiting int64
	isKnown := false
	for _, p := range w.latest.Processes {
		waiting += p.WaitingClaims
		old, now := w.reports[p.ID].before, w.reports[p.ID].latest
		seconds := now.UpdatedAt.Sub(old.UpdatedAt).Seconds()
		if seconds <= 0 {
			continue
		}
		isKnown = true
		inserted += float64(now.Posted-old.Posted) / seconds
		claimed += float64(now.Claimed-old.Claimed) / seconds
		acked += float64(now.Acked-old.Acked) / seconds
		nacked += float64(now.Nacked-old.Nacked) / seconds
		failed += float64(now.Failed-old.Failed) / seconds
	}
	text := fmt.Sprintf("%d claims wait", waiting)
	if isKnown {
		text = fmt.Sprintf("%.1f/s inserted, %.1f/s claimed, %.1f/s acked, %.1f/s nacked, %.1f/s failed; ", inserted, claimed, acked, nacked, failed) + text
	}
	return text
}

// fit cuts lines to a width.
func fit(lines []string, width int) []string {
	for i, line := range lines {
		if lines[i] = printable(line); width > 0 {
			lines[i] = cut(lines[i], width)
		}
	}
	return lines
}
