package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"
)

// noVersion is an ETag that no placement has: their versions begin far above.
const noVersion = `"1"`

// choosePlacement is for the placement of the queue in the path on other cells, which have what it is set to before new events go there: see move.
func choosePlacement(g *Gateway, c *call, r *http.Request) error {
	c.target = g.home()
	queue := pathValue(r, "name")
	body, err := g.peek(c, r, maxPeekBody)
	if err != nil || !isQueue(queue) {
		return err
	}
	c.queue = queue
	var members struct {
		Cells *cellSet `json:"cells"`
	}
	if !decode(body, &members) || members.Cells == nil || *members.Cells != nil && len(*members.Cells) == 0 {
		return nil // home says what is wrong
	}
	c.answer = func(r *http.Request) error { return g.move(c, r, queue, *members.Cells, body) }
	return nil
}

// move places a queue on cells, for the caller of r.
func (g *Gateway) move(c *call, r *http.Request, queue string, cells cellSet, body []byte) error {
	ctx, cancel := context.WithTimeout(r.Context(), placeTime)
	defer cancel()
	path := "/queues/" + url.PathEscape(queue) + "/placement"
	// Who may not place it must change nothing on other cells: home is asked first, under a condition that is never met.
	if err := g.rehearse(ctx, c, g.home(), c.partOf(r, http.MethodPut, path, nil, body)); !isAnswer(err, http.StatusPreconditionFailed) {
		return err
	}
	if err := g.checkKnown(ctx, cells); err != nil {
		return err
	}
	if err := g.makeReady(ctx, queue, cells); err != nil {
		return err
	}
	placing := c.partOf(r, http.MethodPut, path, r.URL.Query(), body)
	placing.Header["If-None-Match"] = r.Header["If-None-Match"]
	answer := g.ask(ctx, c, g.home(), placing)
	text, err := g.success(c, answer)
	if err != nil {
		return err
	}
	made := new(placement)
	if err := json.Unmarshal(text, made); err == nil && made.Queue == queue && made.isValid() {
		g.placements.put(made)
	}
	writeAs(c, answer.resp, text)
	return nil
}

// rehearse sends a call under a condition that is never met, so that it changes nothing. It fails with 412 as the *answered if the caller may make the call, else with why not.
func (g *Gateway) rehearse(ctx context.Context, c *call, at *cell, req *http.Request) error {
	req.Header.Del("If-None-Match")
	req.Header.Set("If-Match", noVersion)
	_, err := g.success(c, g.ask(ctx, c, at, req))
	return err
}

// checkPlaces makes sure, for a caller whom home knows, that the gateway knows the cells that the body of a call to home names.
func (g *Gateway) checkPlaces(c *call, r *http.Request) error {
	var members struct {
		Cell  *int     `json:"cell"`
		Cells *cellSet `json:"cells"`
	}
	if !decode(c.body, &members) || members.Cell == nil && members.Cells == nil {
		return nil // home says what is wrong
	}
	var named cellSet
	if members.Cell != nil {
		named = cellSet{*members.Cell}
	}
	if members.Cells != nil {
		named = append(named, *members.Cells...)
	}
	if err := g.checkKnownCaller(c, r); err != nil {
		return err
	}
	return g.checkKnown(r.Context(), named)
}

// checkKnown makes sure that this gateway knows the cells that a queue is to be placed on. One that home lists with a URL it will know in a moment; any other there is not.
func (g *Gateway) checkKnown(ctx context.Context, cells cellSet) error {
	i := slices.IndexFunc(cells, func(number int) bool { return g.cell(number) == nil })
	if i < 0 {
		return nil
	}
	number := cells[i]
	var list struct {
		Cells []listed `json:"cells"`
	}
	if err := g.home().do(ctx, http.MethodGet, "/cells", g.home().ownHeader(), nil, &list); err != nil {
		return away(home, fmt.Sprintf("Home, cell 0, which may know of cell %d, has not said so. Nothing was done; retry.", number), err)
	}
	if slices.ContainsFunc(list.Cells, func(l listed) bool { return l.Cell == number && l.URL != nil }) {
		return away(number, fmt.Sprintf("The gateway does not know cell %d yet, which home lists. Nothing was done; retry.", number), nil)
	}
	return refuse(validationFailed, "#/cells: the gateway knows no cell %d: PUT /cells/%[1]d with its URL lists it. Nothing was done.", number)
}

// makeReady makes sure that the cells that a queue comes to can be used and have the settings of home.
func (g *Gateway) makeReady(ctx context.Context, queue string, cells cellSet) error {
	p, err := g.placed(queue)
	if err != nil {
		return err
	}
	for _, at := range g.cellsIn(cells) {
		switch {
		case p != nil && p.Cells.has(at.number):
			continue
		case !at.isUp():
			err = errAway
		case at != g.home():
			err = g.pushWithin(ctx, at, ofSettings, spreadTime)
		}
		if err != nil {
			return away(at.number, fmt.Sprintf("The queue cannot be placed on cell %d, which cannot be used, or has not taken the settings of queues from home. Nothing was done.", at.number), err)
		}
	}
	return nil
}

// How gateways find out that former cells are empty.
const (
	emptyEvery = 10 * time.Second
	emptyAfter = time.Minute // since it was left: every gateway that home answers knows by then
)

// findEmpty says at home which former cells have no events of their queues any more, until ctx ends. An event that comes there later is found as a stray.
func (g *Gateway) findEmpty(ctx context.Context) {
	tick := time.NewTicker(g.cfg.emptyEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, p := range g.placements.those(func(p *placement) bool { return len(p.Former) > 0 }) {
			if g.home().isUp() && ctx.Err() == nil {
				g.findEmptyOf(ctx, p)
			}
		}
	}
}

// findEmptyOf asks the former cells of a placement whether they have events, and tells home of those that have none.
func (g *Gateway) findEmptyOf(ctx context.Context, p *placement) {
	now := time.Now()
	current := g.cellsIn(p.Cells)
	for _, f := range p.Former {
		if now.Sub(f.Since) < g.cfg.emptyAfter {
			continue
		}
		var empty []int
		isAll := true
		for _, at := range g.cells() {
			if !f.Cells.has(at.number) || slices.Contains(current, at) {
				continue
			}
			if p.Keys != nil && p.Keys.Until.After(now) && p.Keys.Cells.has(at.number) || !g.isEmpty(ctx, at, p.Queue) {
				isAll = false
				continue
			}
			empty = append(empty, at.number)
		}
		if f.Cells == nil && !isAll || len(empty) == 0 {
			continue
		}
		said := cellSet(empty)
		if f.Cells == nil {
			said = nil
		}
		body, err := json.Marshal(map[string]cellSet{"cells": said})
		if err != nil {
			panic(err) // numbers always encode
		}
		header := g.home().jsonHeader()
		header.Set("If-Match", fmt.Sprintf(`"%d"`, p.Version))
		made := new(placement)
		err = g.home().do(ctx, http.MethodPost, "/queues/"+url.PathEscape(p.Queue)+"/placement/drained", header, bytes.NewReader(body), made)
		if err == nil && made.Queue == p.Queue && made.isValid() {
			g.placements.put(made)
			g.log.Info().Str("queue", p.Queue).Ints("cells", empty).Msg("these cells have no events of the queue any more")
		}
		return // the version is another one now
	}
}

// isEmpty reports whether a cell says that it has no event of a queue.
func (g *Gateway) isEmpty(ctx context.Context, at *cell, queue string) bool {
	has, err := g.countsOf(ctx, at, queue)
	return err == nil && !has.Estimated && has.events() == 0
}
