// Package queue has the operations on events: insert, claim, ack, nack, extend, release, sweep, requeue, purge, list and count them, and
// set the policies of queues. It calls the functions of the schema agent and knows nothing of HTTP.
//
// # Files
//
//	types.go        events, parameters, results and errors
//	service.go      Config with its defaults, connections, Open, Run, Drain, Close
//	ready.go        whether the writes of this process succeed
//	write.go        Insert and Ack: operations of the group commit
//	joint.go        operations of other packages in the group commit: package topic publishes so
//	transaction.go  the SQL of one group commit: acks, inserts, claims, statistics, notification; each kind of operation has a method add…
//	declared.go     which queues are declared, and calls for others refused
//	claim.go        Claim, and what is known of a claim's result
//	receipt.go      the receipts of claims, and the tokens in them
//	dispatch.go     the dispatcher of a queue, its waiters, how long it may sleep, and the one poll for all that sleep
//	notify.go       waking waiters here and in other processes
//	lease.go        Nack, Extend, Release
//	ends.go         WaitEvent: the callers that wait for the end of an event, and the one look for all of them
//	read.go         Get, List, History, Attempts, counts
//	admin.go        policies, pause, purge, deletion, requeue, sweep
//	groups.go       groups: what is set for one, and what each waits for
//	redrive.go      redrives: what goes on with them, and the calls about them
//	series.go       samples of the queues once a minute, outcomes by minute, and the statistics over time made of them
//	upkeep.go       partitions, retention, pruning of history, keys and statistics
//	background.go   passes of the other loops: sweeps, watermark scans, the watch of the server
//	statistics.go   counters, executions, and the report of this process
//
// # Goroutines
//
// Run starts one for each pg.Loop: the notifier, the poll for the dispatchers that sleep, the watch of the server, sweeps, redrives, samples, upkeep, watermark scans, the recording of executions and the report of
// this process; and two that are told of notifications. A queue has a dispatcher while claims wait for it, and
// for a second after. While callers wait for the ends of events, and for a moment after, one goroutine looks for these. The group commit has its writers, see package groupcommit. A dispatcher whose queue is slow to look ahead in has one goroutine
// that does it. Close waits for all of them.
//
// # State and locks
//
// Service.mu guards the dispatchers and whether the service is draining or closed; dispatcher.mu guards the waiters of one queue and the claim that
// it offers. Whoever takes both takes Service.mu first. The other state has a lock of its own each, which is held during no call: the
// notifier, the waits for ends, the watermarks, the group commit, the counters, the executions, the upkeep, the claim size limits, slowNextDue, the declared queues, and the
// state of the server. No lock is held during a call of the database.
//
// In a transaction acks come first, in the order of ids, then inserts, then claims, so that it holds hardly a lock when it may have to wait
// for one. Statements of other packages, such as publishing, come last of all: readers of the log wait from there on until the commit.
//
// # Decisions
//
// docs/decisions: 001 receipts, 004 group commit, 005 watermarks, 006 cost of a row, 007 lanes, 008 statistics, 020 waits for ends, 021 redrives, 022 statistics of queues, 030 groups.
package queue
