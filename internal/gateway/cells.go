package gateway

import (
	"maps"
	"slices"
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

// single returns the only cell, nil if there are several.
func (g *Gateway) single() *cell {
	if all := g.cells(); len(all) == 1 {
		return all[0]
	}
	return nil
}
