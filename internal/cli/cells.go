package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/queued/queued/client"
)

// The commands about cells are under gateway, which is of package main: they are calls to a gateway.

// GatewayCells lists the cells of a gateway.
type GatewayCells struct {
	server `embed:""`
}

// Help returns the text below the usage.
func (*GatewayCells) Help() string {
	return examples(`queued gateway cells`) + "\nPLACED are the queues that are on the cell, and FORMER those that were and may have events there still."
}

// Run lists the cells.
func (c *GatewayCells) Run(ctx context.Context, env *Env) error {
	conn, err := c.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	cells, err := conn.ListCells(ctx)
	if err != nil {
		return err
	}
	return list(env, c.Output, cellsView, all(cells))
}

var cellsView = view[client.ListedCell]{
	columns: columns("CELL", "URL…", "STATE", "NEW QUEUES", "PLACED", "FORMER", "WHY?…"),
	row: func(l client.ListedCell) []string {
		newQueues := "yes"
		if !l.TakesNew {
			newQueues = "no"
		}
		return []string{strconv.Itoa(l.Cell), dash(urlOf(l)), dash(l.State), newQueues, strconv.FormatInt(l.Placed, 10), strconv.FormatInt(l.Former, 10), l.Why}
	},
	empty: "no cells are listed: gateways have them from their settings",
}

func urlOf(l client.ListedCell) string {
	if l.URL == nil {
		return ""
	}
	return *l.URL
}

func cellFields(l client.ListedCell) [][2]string {
	return [][2]string{
		{"cell", strconv.Itoa(l.Cell)},
		{"url", urlOf(l)},
		{"new queues", yes(l.TakesNew)},
		{"queues placed", strconv.FormatInt(l.Placed, 10)},
		{"queues before", strconv.FormatInt(l.Former, 10)},
	}
}

// GatewayAdd lists a cell.
type GatewayAdd struct {
	server  `embed:""`
	Cell    string `arg:"" placeholder:"NUMBER=URL" help:"The number of the cell and the base URL of its servers, such as 2=https://c.internal:8080; the number alone if the gateways have its URL in their settings."`
	KeysNow bool   `help:"Have inserts with an idempotency key into queues on all cells go there at once. They do not meet those before them then, so an event can be there twice."`
}

// Help returns the text below the usage.
func (*GatewayAdd) Help() string {
	return examples(`queued gateway add 2=https://c.internal:8080`) +
		"\nThe gateway asks the URL with the key of this command whether the cell is there: use one that the cell knows, such as the QUEUED_API_KEY of all cells." +
		"\nAll gateways use the cell within a moment, and new queues are placed there, too. It also has a cell that was drained take new queues again." +
		"\nInserts with an idempotency key into queues on all cells go there once keys have been kept for their time (QUEUED_KEY_RETENTION), unless --keys-now is given."
}

// Run lists the cell, which takes new queues from then on.
func (c *GatewayAdd) Run(ctx context.Context, env *Env) error {
	number, url, hasURL := strings.Cut(c.Cell, "=")
	n, err := cellNumber(number)
	if err != nil {
		return err
	}
	if hasURL && url == "" {
		return usagef("%q has no URL, such as %d=https://c.internal:8080; without the = the gateways have it from their settings", c.Cell, n)
	}
	p := client.PutCellParams{TakesNew: true, Keys: keysParam(c.KeysNow)}
	if hasURL {
		p.URL = &url
	}
	return showAnswer(env, &c.server, cellFields, func(conn *client.Client) (client.ListedCell, error) {
		if !hasURL { // what it was listed with stays
			cells, err := conn.ListCells(ctx)
			if err != nil {
				return client.ListedCell{}, err
			}
			if i := slices.IndexFunc(cells, func(l client.ListedCell) bool { return l.Cell == n && l.UpdatedAt != nil }); i >= 0 {
				p.URL = cells[i].URL
			}
		}
		return conn.PutCell(ctx, n, p)
	})
}

// keysParam returns what calls say of --keys-now.
func keysParam(isNow bool) string {
	if isNow {
		return "now"
	}
	return ""
}

// cellNumber reads the number of a cell.
func cellNumber(text string) (int, error) {
	n, err := strconv.ParseUint(text, 10, 8)
	if err != nil {
		return 0, usagef("%q is no number of a cell, which is 0 to 255", text)
	}
	return int(n), nil
}

// GatewayRemove takes a cell off the list.
type GatewayRemove struct {
	server  `embed:""`
	Cell    int  `arg:"" help:"The number of the cell."`
	KeysNow bool `help:"Give up the idempotency keys that were used there and count still. Inserts under them do not meet those before them then, so an event can be there twice."`
}

// Help returns the text below the usage.
func (*GatewayRemove) Help() string {
	return examples(`queued gateway remove 2`) + "\nDrain it first. Its history can be read through gateways no more." +
		"\nWithout --keys-now it stays on the list while idempotency keys that were used there count, which is twice as long as keys are kept (QUEUED_KEY_RETENTION) after its queues were placed elsewhere."
}

// Run takes the cell off the list.
func (c *GatewayRemove) Run(ctx context.Context, env *Env) error {
	conn, err := c.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.DeleteCell(ctx, c.Cell, client.DeleteCellParams{Keys: keysParam(c.KeysNow)}); err != nil {
		return err
	}
	env.notef("cell %d is not listed any more", c.Cell)
	return nil
}

// GatewayMove places a queue elsewhere.
type GatewayMove struct {
	server  `embed:""`
	Queue   string `arg:"" queue:"" help:"The queue."`
	To      string `arg:"" placeholder:"CELLS" help:"Where its new events go: the number of a cell, several with commas to spread it, or all."`
	KeysNow bool   `help:"Have inserts with an idempotency key follow at once. They do not meet those before them then, so an event can be there twice."`
	Wait    bool   `help:"Wait until the cells that it was on have no events of it any more."`
}

// Help returns the text below the usage.
func (*GatewayMove) Help() string {
	return examples(`queued gateway move mail 2`, `queued gateway move mail 1,4 --wait`, `queued gateway move mail all`) +
		"\nNothing is copied but the policy and the push: new events go to the new cells at once, workers get those of the old ones first, and history stays where it is." +
		"\nInserts with an idempotency key stay where they are for as long as keys are kept (QUEUED_KEY_RETENTION), so that a repetition meets its first."
}

// Run places the queue.
func (c *GatewayMove) Run(ctx context.Context, env *Env) error {
	cells, err := cellsOf(c.To)
	if err != nil {
		return err
	}
	p := client.PlaceParams{Cells: cells, Keys: keysParam(c.KeysNow)}
	return showAnswer(env, &c.server, placementFields, func(conn *client.Client) (client.Placement, error) {
		placed, err := conn.PutPlacement(ctx, c.Queue, p)
		if err != nil || !c.Wait {
			return placed, err
		}
		err = awaitTrue(ctx, env, func() string { return "cells that it was on have events of it still, or take its keys" }, func() (bool, error) {
			placed, err = conn.GetPlacement(ctx, c.Queue)
			return len(placed.Former) == 0, err
		})
		return placed, err
	})
}

// cellsOf reads numbers of cells with commas, or all.
func cellsOf(text string) (client.Cells, error) {
	if text == "all" {
		return nil, nil
	}
	var cells client.Cells
	for part := range strings.SplitSeq(text, ",") {
		n, err := cellNumber(strings.TrimSpace(part))
		if err != nil {
			return nil, usagef(`%q are no cells: give numbers from 0 to 255 with commas between them, or "all"`, text)
		}
		cells = append(cells, n)
	}
	return cells, nil
}

func placementFields(p client.Placement) [][2]string {
	former := make([]string, len(p.Former))
	for i, f := range p.Former {
		former[i] = cellsText(f.Cells)
	}
	fields := [][2]string{{"queue", p.Queue}, {"cells", cellsText(p.Cells)}, {"since@", moment(p.PlacedAt)}, {"before", strings.Join(former, ", ")}}
	if p.Keys != nil {
		fields = append(fields, [2]string{"keys on", cellsText(p.Keys.Cells)}, [2]string{"until@", moment(p.Keys.Until)})
	}
	return fields
}

func cellsText(cells client.Cells) string {
	if cells == nil {
		return "all"
	}
	text := make([]string, len(cells))
	for i, n := range cells {
		text[i] = strconv.Itoa(n)
	}
	return strings.Join(text, ",")
}

// GatewayDrain moves all queues away from a cell.
type GatewayDrain struct {
	server  `embed:""`
	Cell    int  `arg:"" help:"The number of the cell."`
	KeysNow bool `help:"Have inserts with an idempotency key follow at once. They do not meet those before them then, so an event can be there twice."`
	Wait    bool `help:"Wait until it has no events of these queues any more."`
}

// Help returns the text below the usage.
func (*GatewayDrain) Help() string {
	return examples(`queued gateway drain 2`, `queued gateway drain 2 --wait`) +
		"\nIt takes no new queues any more, and its queues are placed on the cells with the fewest. It may be interrupted, and repeated." +
		"\nWithout --keys-now it takes inserts with an idempotency key for as long as keys are kept (QUEUED_KEY_RETENTION), so it is not empty before." +
		"\nIts history can be read as long as it is listed; then: queued gateway remove 2"
}

// A drained is what became of a cell.
type drained struct {
	Cell  int   `json:"cell"`
	Moved int   `json:"moved"` // queues
	Left  int64 `json:"left"`  // queues that may have events there still
}

func drainedFields(d drained) [][2]string {
	return [][2]string{
		{"cell", strconv.Itoa(d.Cell)},
		{"queues moved", strconv.Itoa(d.Moved)},
		{"queues with events there", strconv.FormatInt(d.Left, 10)},
	}
}

// Run drains the cell.
func (c *GatewayDrain) Run(ctx context.Context, env *Env) error {
	return showAnswer(env, &c.server, drainedFields, func(conn *client.Client) (drained, error) {
		d := drained{Cell: c.Cell}
		drain := &drain{conn: conn, number: c.Cell, keys: keysParam(c.KeysNow)}
		err := drain.run(ctx, &d)
		if err != nil || !c.Wait {
			return d, err
		}
		err = awaitTrue(ctx, env, func() string {
			return fmt.Sprintf("%d queues%s may have events on cell %d still, ready, scheduled or leased, or keys that stay there", d.Left, drain.names(), c.Cell)
		}, func() (bool, error) {
			err := drain.look(ctx, &d)
			return d.Left == 0, err
		})
		return d, err
	})
}

// A drain moves the queues of a cell to others.
type drain struct {
	conn   *client.Client
	number int
	keys   string
	cells  []client.ListedCell // that take new queues and can be used
	placed int                 // queues
	left   []string            // that may have events there still; nil: they are too many to be named
}

// names returns the queues that are waited for, in brackets.
func (d *drain) names() string {
	if len(d.left) == 0 {
		return ""
	}
	return " (" + strings.Join(d.left, ", ") + ")"
}

// run has the cell take no new queues, and moves its own.
func (d *drain) run(ctx context.Context, done *drained) error {
	cells, err := d.conn.ListCells(ctx)
	if err != nil {
		return err
	}
	p := client.PutCellParams{Keys: d.keys}
	isKnown := false
	for _, l := range cells {
		switch {
		case l.Cell == d.number:
			isKnown = true
			if l.UpdatedAt != nil {
				p.URL = l.URL
			}
		case l.TakesNew && l.State != "away":
			d.cells = append(d.cells, l)
		}
	}
	switch {
	case !isKnown:
		return fmt.Errorf("cell %d is not known: queued gateway cells lists those that are", d.number)
	case len(d.cells) == 0:
		return fmt.Errorf("there is no other cell that takes new queues and can be used, which those of cell %d could go to", d.number)
	}
	if _, err := d.conn.PutCell(ctx, d.number, p); err != nil {
		return err
	}
	placed, err := d.conn.ListPlacements(ctx, client.PlacementFilter{Limit: 1000})
	if err != nil {
		return err
	}
	d.placed = len(placed.Placements)
	known := make(map[string]bool)
	for _, one := range placed.Placements {
		known[one.Queue] = true
		if slices.Contains(one.Cells, d.number) {
			if err := d.move(ctx, one); err != nil {
				return fmt.Errorf("after %d queues: %s: %w", done.Moved, one.Queue, err)
			}
			done.Moved++
		} else if d.keys == "now" && one.Keys != nil && slices.Contains(one.Keys.Cells, d.number) { // it was moved before, and its keys were not
			if _, err := d.conn.PutPlacement(ctx, one.Queue, client.PlaceParams{Cells: one.Cells, Keys: d.keys, IfVersion: one.Version}); err != nil && !errors.Is(err, client.ErrPreconditionFailed) {
				return fmt.Errorf("after %d queues: %s: %w", done.Moved, one.Queue, err)
			}
		}
	}
	if d.number == 0 { // where queues may be from before there were gateways
		for q, err := range d.conn.Cell(0).ListQueues(ctx) {
			if err != nil {
				return err
			}
			if known[q.Queue] || strings.HasPrefix(q.Queue, "queued.") {
				continue
			}
			if err := d.move(ctx, client.Placement{Queue: q.Queue, Cells: client.Cells{0}}); err != nil {
				return fmt.Errorf("after %d queues: %s: %w", done.Moved, q.Queue, err)
			}
			done.Moved++
		}
	}
	return d.look(ctx, done)
}

// move places a queue on the other cells that it is on, or else on that with the fewest queues, unless it was placed elsewhere meanwhile.
func (d *drain) move(ctx context.Context, p client.Placement) error {
	for {
		to := slices.DeleteFunc(slices.Clone(p.Cells), func(n int) bool { return n == d.number })
		fewest := &d.cells[0]
		for i := range d.cells {
			if d.cells[i].Placed < fewest.Placed {
				fewest = &d.cells[i]
			}
		}
		isAlone := len(to) == 0
		if isAlone {
			to = client.Cells{fewest.Cell}
		}
		_, err := d.conn.PutPlacement(ctx, p.Queue, client.PlaceParams{Cells: to, Keys: d.keys, IfVersion: p.Version, IfAbsent: p.Version == 0})
		switch {
		case err == nil && isAlone:
			fewest.Placed++
			return nil
		case !errors.Is(err, client.ErrPreconditionFailed):
			return err
		}
		if p, err = d.conn.GetPlacement(ctx, p.Queue); err != nil || !slices.Contains(p.Cells, d.number) {
			return err
		}
	}
}

// look counts the queues that may have events on the cell, and names a few.
func (d *drain) look(ctx context.Context, done *drained) error {
	cells, err := d.conn.ListCells(ctx)
	if i := slices.IndexFunc(cells, func(l client.ListedCell) bool { return l.Cell == d.number }); err == nil && i >= 0 {
		done.Left = cells[i].Placed + cells[i].Former
	}
	d.left = nil
	if err != nil || done.Left == 0 || done.Left > 5 || d.placed > 10_000 {
		return err
	}
	placed, err := d.conn.ListPlacements(ctx, client.PlacementFilter{Limit: 1000})
	for _, one := range placed.Placements {
		if slices.ContainsFunc(one.Former, func(f client.FormerCells) bool { return slices.Contains(f.Cells, d.number) }) {
			d.left = append(d.left, one.Queue)
		}
	}
	return err
}

const awaitInterval = 2 * time.Second

// awaitTrue calls look until it returns true, and says meanwhile what it waits for.
func awaitTrue(ctx context.Context, env *Env, what func() string, look func() (bool, error)) error {
	said := make(chan string, 1)
	said <- what()
	p := startProgress(env, func(time.Duration) string {
		text := <-said
		said <- text
		return text
	})
	defer p.stop("")
	for {
		isTrue, err := look()
		if err != nil || isTrue {
			return err
		}
		<-said
		said <- what()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(awaitInterval):
		}
	}
}
