// Package push sends the events of queues to the endpoints of others. It calls the functions of the schema agent, and package queue as any worker might:
// it claims, and then acks, nacks or releases. Package egress sends its requests.
//
// # Files
//
//	types.go     pushes, parameters, results and errors
//	service.go   Config with its defaults, Open, Run, Drain, Close; which queues this process pushes; what is recorded of endpoints
//	pushes.go    setting, showing, deleting, enabling and testing a push, and rotating its secret
//	owner.go     which process pushes which queue
//	worker.go    one queue: claiming, sending, and what becomes of the events
//	state.go     how an endpoint does: the breaker, holds, when it is disabled
//	endpoint.go  a push ready for use, its secrets opened
//	message.go   an event as a request
//	attempts.go  the log of attempts
//
// # Goroutines
//
// Run follows the pushes with a pg.Replica, and starts three loops: one reports whether this process pushes, one records how endpoints do, one logs attempts. A queue that this process pushes has a worker, which is one goroutine that claims and one for each event that
// is in flight or waits for its ack to be written. A worker that is stopped ends when these have ended.
//
// # State and locks
//
// The pushes, and the processes that share them out, are a pg.Replica. Its snapshots are put to use one at a time: workers are started, changed and stopped.
// Service.mu guards the workers and the counts; worker.mu, which is locked after that, one worker. Neither is held during a call of the database or of an endpoint.
//
// The state of an endpoint is in the memory of the process that pushes, and in agent.push_state from its latest change. An epoch fences
// records: a process that records a change of a state that something else has changed takes that over instead.
//
// # Decisions
//
// docs/decisions: 016 outgoing requests, 017 pushes, 023 delivery logs.
package push
