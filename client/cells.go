package client

import "context"

// A Cell is what a server says of its database as one of several behind a gateway.
type Cell struct {
	// Number is that of the cell, 0 to 255. A single database is cell 0, which is home.
	Number int     `json:"cell"`
	IsHome bool    `json:"is_home"`
	IDs    CellIDs `json:"ids"`
	// Version is that of the server.
	Version string `json:"version"`
}

// CellIDs are the ids of events, schedules and redrives that a cell gives out.
type CellIDs struct {
	First int64 `json:"first"`
	Last  int64 `json:"last"`
	// Left is how many it has still, of events, schedules or redrives, whichever has the fewest.
	Left int64 `json:"left"`
}

// GetCell returns which cell the database of the server is.
func (c *Client) GetCell(ctx context.Context) (Cell, error) {
	var cell Cell
	_, err := c.Do(ctx, Request{Path: "/cell"}, &cell)
	return cell, err
}
