// Package gateway is the process in front of several cells: it passes each request on to the cell that it is for, and the answer back. It knows the API and the
// placement of queues, and no SQL.
//
// # Files
//
//	gateway.go    Config, New, Run, Drain, the handler and its server
//	routes.go     the table of every route of the API, and where each goes
//	choose.go     the cell that a request is for, where there are several
//	batch.go      batches of events over several cells
//	ids.go        calls about several events by their ids
//	elements.go   lists whose elements are for several cells, and the results of each
//	claim.go      claims from queues that were moved, or are placed nowhere yet
//	placement.go  the placements of queues that home has, followed by their version; the first use of a queue
//	strays.go     events of queues on cells that they are not placed on
//	keys.go       the copies of home's keys on all cells
//	cell.go       one cell: its connections, its limits, whether it may be used
//	proxy.go      requests and answers on their way, and what failed on it
//	body.go       bodies that have to be read before it is known which cell they are for
//	call.go       what is known of one request, for the log and the metrics
//	own.go        the calls that the gateway answers itself, and who may make them
//	problem.go    problem documents
//	metrics.go    metrics
//
// # Goroutines and state
//
// [Gateway.Run] has one goroutine that follows the placements of home and the list of cells, and one that follows home's keys; and for each cell one that looks after it
// (cell.watch), one that looks for stray events, and unless it is home two that keep its keys level. A request has the goroutine of its handler, and those that net/http
// starts. Nothing is kept on disk.
//
// A cell's state is replaced as a whole, and never changed. placements.mu guards the placements and who waits for a change of one; no other lock is taken while
// it is held.
//
// With one cell there are no placements, and every request goes to it. See docs/decisions/026-gateway.md.
package gateway
