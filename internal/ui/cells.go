package ui

import (
	"strconv"
	"strings"

	"github.com/queued/queued/client"
)

// Cells is the page of the cells behind a gateway.
type Cells struct{ Cells []client.ListedCell }

// A Placement says on which cells a queue is.
type Placement struct {
	client.Placement
	IsPlaced bool   // false: it is placed nowhere, and so at home
	Unknown  string // why the placement could not be read; empty: it was
}

// On names the cells that new events go to.
func (p *Placement) On() string {
	if !p.IsPlaced {
		return "0"
	}
	return cellNames(p.Cells)
}

// Before names the cells that the queue was on before, and that may hold some of its events; empty: none.
func (p *Placement) Before() string {
	var all []string
	for _, former := range p.Former {
		all = append(all, cellNames(former.Cells))
	}
	return strings.Join(all, ", ")
}

// KeysOn names the cells that inserts with an idempotency key go to for a time; empty: they go where all others go.
func (p *Placement) KeysOn() string {
	if p.Keys == nil {
		return ""
	}
	return cellNames(p.Keys.Cells)
}

// cellNames returns the numbers of cells, or the word all.
func cellNames(cells client.Cells) string {
	if cells == nil {
		return "all"
	}
	names := make([]string, len(cells))
	for i, number := range cells {
		names[i] = strconv.Itoa(number)
	}
	return strings.Join(names, ", ")
}

// PlacementForm is the form that places a queue on other cells.
type PlacementForm struct {
	Queue string
	Placement
}
