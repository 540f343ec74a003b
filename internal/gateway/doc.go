// Package gateway is the process in front of several cells: it passes each request on to the cell that it is for, and the answer back. It knows the API and the
// placement of queues, and no SQL.
//
// # Files
//
//	gateway.go    Config, New, Run, Drain, the handler and its server
//	routes.go     the table of every route of the API, and where each goes
//	choose.go     the cell that a request is for, where there are several
//	batch.go      batches of events over several cells
//	cloudevents.go CloudEvents, whose sources and ids are keys
//	ids.go        calls about several events by their ids
//	spread.go     inserts into queues that are on several cells, and claims of them
//	keyed.go      inserts under idempotency keys into queues that were moved
//	group.go      the cell of a group of a queue that is spread
//	headers.go    fields of headers that are not passed on
//	turns.go      the cells that queues on all cells were on before
//	wholes.go     calls about all events of a queue, and calls of one cell below /cells/
//	elements.go   lists whose elements are for several cells, and the results of each
//	gather.go     parts of a call, asked of several cells
//	claim.go      claims from queues that were moved, are spread, or are placed nowhere yet, and acks that are done before
//	leases.go     leases of claims whose answer does not reach its client
//	withdraw.go   claims that nobody waits for any more
//	delete.go     the deletion of a queue on all its cells
//	move.go       queues that are placed elsewhere, and former cells that are empty
//	cells.go      the cells that there are, and which of them have a part of a queue
//	list.go       home's list of cells
//	placement.go  the placements of queues that home has, followed by their version; the first use of a queue
//	unused.go     placements of queues that nobody has used
//	forward.go    events that home has wait for the cells of their queues
//	strays.go     events of queues on cells that they are not placed on
//	copies.go     the copies of home's keys, and of what queues are set to there, on all cells
//	cell.go       one cell: its connections, its limits, whether it may be used
//	proxy.go      requests and answers on their way, and what failed on it
//	body.go       bodies that have to be read before it is known which cell they are for
//	call.go       what is known of one request, for the log and the metrics
//	pool.go       places and memory that callers share
//	own.go        the calls that the gateway answers itself, and who may make them
//	problem.go    problem documents
//	metrics.go    metrics
//
// # Goroutines and state
//
// [Gateway.Run] has one goroutine that follows the placements of home and the list of cells, one each that follows home's keys and what queues are set to there, one that
// asks former cells whether they are empty, and one that looks for placements that nobody has used. Each cell has one goroutine that looks after it (cell.watch), and one
// that looks for stray events; unless it is home, two that keep its copies level, and one that brings it the events that home has wait for it. A request has the goroutine
// of its handler, and those that net/http starts. Nothing is kept on disk.
//
// A cell's state is replaced as a whole, and never changed. placements.mu guards the placements and who waits for a change of one; no other lock is taken while
// it is held.
//
// With one cell there are no placements, and every request goes to it. See docs/decisions/026-gateway.md.
package gateway
