package pages

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/queued/queued/client"
	"github.com/queued/queued/internal/ui"
)

// cellRoutes is what there is behind a gateway alone.
func (h *Handler) cellRoutes() {
	h.mux.Get(Prefix+"cells", h.page(showCells))
	h.mux.Get(Prefix+"queues/{name}/placement", h.page(needs(scopeManage, askPlacement)))
	h.mux.Post(Prefix+"queues/{name}/placement", h.action(storePlacement, needs(scopeManage, askPlacement)))
}

// showCells is the page of the cells behind a gateway.
func showCells(v *visit) (view, error) {
	cells, err := v.api.ListCells(v.r.Context())
	if err != nil {
		return view{}, err
	}
	return view{name: "cells", title: "Cells", nav: "cells", isLive: true, body: ui.Cells{Cells: cells}}, nil
}

// placementOf returns on which cells a queue is, for its page; nil: the API is not that of a gateway.
func (v *visit) placementOf(ctx context.Context, queue string) *ui.Placement {
	if !v.h.cfg.HasCells {
		return nil
	}
	p, err := v.api.GetPlacement(ctx, queue)
	switch {
	case errors.Is(err, client.ErrNotFound):
		return &ui.Placement{}
	case err != nil:
		return &ui.Placement{Unknown: problemOf(err).Detail}
	}
	return &ui.Placement{Placement: p, IsPlaced: true}
}

// askPlacement is the form that places a queue on other cells. A queue that is placed nowhere is at home.
func askPlacement(v *visit) (view, error) {
	name := v.parameter("name")
	p, err := v.api.GetPlacement(v.r.Context(), name)
	if err != nil && !errors.Is(err, client.ErrNotFound) {
		return view{}, err
	}
	return view{name: "placement-form", title: "Place " + name, nav: "queues", body: &ui.PlacementForm{Queue: name, Placement: ui.Placement{Placement: p, IsPlaced: err == nil}}}, nil
}

// storePlacement places a queue, if its placement is still the version that the form was about.
func storePlacement(v *visit) (string, error) {
	cells, err := cellsIn(v.form.Get("cells"))
	if err != nil {
		return "", err
	}
	version, err := v.number("version", 64)
	if err != nil {
		return "", err
	}
	params := client.PlaceParams{Cells: cells, IfVersion: version, IfAbsent: version == 0}
	if v.form.Has("keys") {
		params.Keys = "now"
	}
	_, err = v.api.PutPlacement(v.r.Context(), v.parameter("name"), params)
	return did(queuePath(v), "queue.placed", ""), err
}

// maxCell is the highest number of a cell.
const maxCell = 255

// cellsIn returns the cells that were entered: numbers, or all of them.
func cellsIn(text string) (client.Cells, error) {
	words := strings.FieldsFunc(text, func(c rune) bool { return c == ',' || c == ' ' })
	if len(words) == 1 && words[0] == "all" {
		return nil, nil
	}
	cells := client.Cells{}
	for _, word := range words {
		number, err := strconv.Atoi(word)
		if err != nil || number < 0 || number > maxCell {
			return nil, invalid("cells", "must be numbers of cells, such as 1 or 1, 2, or the word all")
		}
		cells = append(cells, number)
	}
	if len(cells) == 0 {
		return nil, invalid("cells", "must name a cell, or be the word all")
	}
	return cells, nil
}

// missingHeader is where a gateway names the cells whose part an answer lacks.
const missingHeader = "Queued-Unavailable-Cells"

// missingCells are those whose part the answers lack that a page is made of. It is safe for concurrent use.
type missingCells struct {
	mu      sync.Mutex
	numbers map[int]bool
}

// add notes the cells that an answer names in its header.
func (m *missingCells) add(values []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for text := range strings.SplitSeq(strings.Join(values, ","), ",") {
		if number, err := strconv.Atoi(strings.TrimSpace(text)); err == nil {
			if m.numbers == nil {
				m.numbers = make(map[int]bool)
			}
			m.numbers[number] = true
		}
	}
}

// list returns the numbers in order.
func (m *missingCells) list() []int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.numbers))
}
