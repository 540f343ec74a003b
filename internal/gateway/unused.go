package gateway

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// A call that is the first about a queue places it, also one that puts nothing there in the end. So that home does not gather such queues, gateways remove placements that nobody has asked for
// by name once they are a day old, if the queue has no events, no history and no settings then. What comes there later all the same is found as a stray event.
const (
	unusedEvery = time.Hour
	unusedAfter = 24 * time.Hour
	unusedUntil = 7 * 24 * time.Hour // since the queue was placed: then it is looked at no more
)

// findUnused removes placements of queues that were never used, until ctx ends.
func (g *Gateway) findUnused(ctx context.Context) {
	tick := time.NewTicker(g.cfg.unusedEvery)
	defer tick.Stop()
	used := map[string]int64{} // versions of placements of queues that were used
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		found := g.placements.those(func(p *placement) bool {
			age := time.Since(p.PlacedAt)
			return p.FirstUse && len(p.Cells) == 1 && len(p.Former) == 0 && age > g.cfg.unusedAfter && age < unusedUntil+unusedAfter
		})
		before := used
		used = map[string]int64{}
		for _, p := range found {
			at := g.cell(p.Cells[0])
			if ctx.Err() != nil || at == nil || !at.isUp() || !g.home().isUp() {
				continue
			}
			if before[p.Queue] == p.Version || !g.isUnused(ctx, at, p.Queue) {
				used[p.Queue] = p.Version
				continue
			}
			header := g.home().ownHeader()
			header.Set("If-Match", fmt.Sprintf(`"%d"`, p.Version))
			if err := g.home().do(ctx, http.MethodDelete, "/queues/"+url.PathEscape(p.Queue)+"/placement", header, nil, nil); err == nil {
				g.log.Info().Str("queue", p.Queue).Int("cell", at.number).Msg("the queue was never used, and is placed nowhere again")
			}
		}
	}
}

// isUnused reports whether home says that a queue has no settings, and its cell that it has no events and no history.
func (g *Gateway) isUnused(ctx context.Context, at *cell, queue string) bool {
	ctx, cancel := context.WithTimeout(ctx, placeTime)
	defer cancel()
	settings := new(copiesPage)
	if err := g.home().do(ctx, http.MethodGet, ofSettings.path()+"?queue="+url.QueryEscape(queue), g.home().ownHeader(), nil, settings); err != nil || len(settings.copies()) > 0 || !g.isEmpty(ctx, at, queue) {
		return false
	}
	var past struct {
		Events *[]struct{} `json:"events"`
	}
	err := at.do(ctx, http.MethodGet, "/history?limit=1&queue="+url.QueryEscape(queue), at.ownHeader(), nil, &past)
	return err == nil && past.Events != nil && len(*past.Events) == 0
}
