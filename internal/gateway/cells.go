package gateway

import (
	"context"
	"errors"
	"maps"
	"net/url"
	"slices"
	"strings"
)

// cellsNow are the cells that a gateway knows at a time. It is not changed: another one takes its place.
type cellsNow struct {
	byNumber map[int]*cell
	sorted   []*cell // by their numbers
}

func newCellsNow(byNumber map[int]*cell) *cellsNow {
	now := &cellsNow{byNumber: byNumber}
	for _, number := range slices.Sorted(maps.Keys(byNumber)) {
		now.sorted = append(now.sorted, byNumber[number])
	}
	return now
}

// cell returns the cell of a number, nil if this gateway was not told of it.
func (g *Gateway) cell(number int) *cell { return g.known.Load().byNumber[number] }

// home returns the cell that has what there is once.
func (g *Gateway) home() *cell { return g.cell(home) }

// cells returns all cells by their numbers. The caller must not change the slice.
func (g *Gateway) cells() []*cell { return g.known.Load().sorted }

// cellsIn returns the cells of a set by their numbers: those that this gateway was told of, and where the set is of all, those that take new queues.
func (g *Gateway) cellsIn(set cellSet) []*cell {
	var found []*cell
	for _, at := range g.cells() {
		if set == nil && at.takesNew.Load() || set != nil && set.has(at.number) {
			found = append(found, at)
		}
	}
	return found
}

// cellsOf returns the cells where events of a queue may wait: those that it is placed on, its former ones, and others that were found to have some; of an empty name, all. A queue that is
// placed nowhere may have been at home before there was a gateway; those of the service are on every cell. It fails with a *problem about a cell that this gateway was not told of.
func (g *Gateway) cellsOf(queue string) ([]*cell, error) {
	if !isQueue(queue) {
		return g.cells(), nil
	}
	p, err := g.placed(queue)
	if err != nil {
		return nil, err
	}
	var sets []cellSet
	for _, at := range g.strays.of(queue) {
		sets = append(sets, cellSet{at.number})
	}
	if p == nil {
		return g.among(append(sets, cellSet{home})), nil
	}
	sets = append(sets, p.sets()...)
	for _, set := range sets {
		for _, number := range set {
			if g.cell(number) == nil {
				return nil, g.unknownCell(number)
			}
		}
	}
	return g.among(sets), nil
}

// cellsEver returns the cells where events of a queue may have ended: those of cellsOf, and those that it was on at some time. Past cells that this gateway was not told of are there no more. A
// queue that is placed nowhere may have been on any.
func (g *Gateway) cellsEver(queue string) ([]*cell, error) {
	now, err := g.cellsOf(queue)
	if err != nil || !isQueue(queue) {
		return now, err
	}
	p, _ := g.placements.get(queue)
	if p == nil {
		return g.cells(), nil
	}
	sets := make([]cellSet, 0, len(now)+1)
	for _, at := range now {
		sets = append(sets, cellSet{at.number})
	}
	if p.Past != nil {
		sets = append(sets, *p.Past)
	}
	return g.among(sets), nil
}

// sets are the cells that a placement names, and its former ones.
func (p *placement) sets() []cellSet {
	sets := []cellSet{p.Cells}
	for _, f := range p.Former {
		sets = append(sets, f.Cells)
	}
	return sets
}

// among returns the cells that one of the sets has, by their numbers.
func (g *Gateway) among(sets []cellSet) []*cell {
	var found []*cell
	for _, at := range g.cells() {
		if slices.ContainsFunc(sets, func(set cellSet) bool { return set.has(at.number) }) {
			found = append(found, at)
		}
	}
	return found
}

// single returns the only cell that there is, to which everything goes; nil as long as that is not known, and if there are several.
func (g *Gateway) single() *cell {
	all := g.cells()
	if len(all) > 1 || !g.placements.allAtHome.Load() {
		return nil
	}
	return all[0]
}

// A listed is a cell as home lists it.
type listed struct {
	Cell     int     `json:"cell"`
	URL      *string `json:"url"`
	TakesNew bool    `json:"takes_new"`
	Turns    []turn  `json:"turns"`
}

// ParseURL returns the base URL of a cell's servers: http or https, without a user, a path or a query.
func ParseURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.Trim(u.Path, "/") != "" {
		return nil, errors.New("it must be an http or https URL without a user, a path or a query")
	}
	u.Path = ""
	return u, nil
}

// setListed has the gateway know the cells that home lists, beside those of its settings, whose URLs go before. It is called by one goroutine.
func (g *Gateway) setListed(ctx context.Context, list []listed) {
	before := g.known.Load()
	byNumber := maps.Clone(g.given)
	inList := make(map[int]listed)
	for _, l := range list {
		inList[l.Cell] = l
		if g.given[l.Cell] != nil || l.Cell < 0 || l.Cell > maxCell {
			continue
		}
		if l.URL == nil {
			g.complain(l.Cell, "the cell is listed without a URL, and is not in the settings of this gateway (QUEUED_CELLS)")
			continue
		}
		base, err := ParseURL(*l.URL)
		if err != nil {
			g.complain(l.Cell, "the cell is listed with a URL that cannot be used: "+err.Error())
			continue
		}
		if byNumber[l.Cell] = before.byNumber[l.Cell]; byNumber[l.Cell] == nil || byNumber[l.Cell].url.String() != base.String() {
			byNumber[l.Cell] = newCell(&g.cfg, l.Cell, base, g.drain) //nolint:contextcheck // it lives longer
		}
	}
	for number, at := range byNumber {
		l, isListed := inList[number]
		at.takesNew.Store(l.TakesNew || !isListed)
		var turns *[]turn
		if isListed {
			turns = &l.Turns
		}
		at.turns.Store(turns)
	}
	if maps.Equal(before.byNumber, byNumber) {
		return
	}
	for number, at := range byNumber {
		if before.byNumber[number] != at {
			g.watch(ctx, at)
		}
	}
	g.known.Store(newCellsNow(byNumber))
	for number, at := range before.byNumber {
		if byNumber[number] != at {
			at.log.Info().Str("url", at.url.String()).Msg("the cell is not listed any more with this URL")
			at.stop() // calls that it has are finished
		}
	}
}

// complain logs what is wrong with a cell, once.
func (g *Gateway) complain(number int, text string) {
	if g.complaints[number] != text {
		g.complaints[number] = text
		g.log.Error().Int("cell", number).Msg(text)
	}
}

// watch looks after a cell until ctx ends, or the cell is not listed any more.
func (g *Gateway) watch(ctx context.Context, at *cell) {
	ctx, at.stop = context.WithCancel(ctx)
	if at.number != home {
		at.prepare = g.prepare
		for of := range subjects {
			g.watching.Go(func() { g.keepLevel(ctx, at, of) })
		}
		g.watching.Go(func() { g.forward(ctx, at) })
	}
	g.watching.Go(func() { g.lookForStrays(ctx, at) })
	g.watching.Go(func() {
		at.watch(ctx)
		at.transport.CloseIdleConnections()
	})
}
