package http

import (
	"net/http"

	"github.com/queued/queued/internal/cell"
)

// A cellResponse is what is known of the database as one of several cells.
type cellResponse struct {
	Cell   int       `json:"cell"`
	IsHome bool      `json:"is_home"`
	IDs    cellRange `json:"ids"`
	// The versions of the latest changes of placements, at home, and of keys, with their epoch.
	PlacementVersion int64  `json:"placement_version"`
	KeysVersion      int64  `json:"keys_version"`
	Epoch            string `json:"epoch"`
	Version          string `json:"version"` // of the program
}

// A cellRange is the ids that a cell gives out.
type cellRange struct {
	First int64 `json:"first"`
	Last  int64 `json:"last"`
	Left  int64 `json:"left"` // of events, schedules or redrives, whichever has the fewest left
}

func (s *Server) cellResponseOf(c cell.Cell) cellResponse {
	return cellResponse{Cell: c.Number, IsHome: c.IsHome(), IDs: cellRange{c.FirstID, c.LastID, c.IDsLeft}, PlacementVersion: c.PlacementVersion, KeysVersion: c.KeysVersion, Epoch: c.Epoch, Version: s.version.Version}
}

func (s *Server) getCell(r *http.Request, _ noRequest) (reply, error) {
	c, err := s.cells.Get(r.Context())
	return reply{body: s.cellResponseOf(c)}, err
}
