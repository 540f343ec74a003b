// Package cell knows which cell of several this database is, and on home, which is cell 0, which cells the queues are placed on. It calls the functions of the
// schema agent and knows nothing of HTTP.
//
// # Files
//
//	service.go    Config, Open with the number of the cell, Run, Close
//	placement.go  which cells queues are placed on
//	forward.go    events that home has had wait for this cell
//	types.go      parameters, results and errors
//
// # State and locks
//
// The number of the cell never changes. Everything else is asked of the database when it is needed: no call about events looks at it. Service.mu guards the
// channel by which those who wait are told of changes.
package cell
