// Package topic is the log of publish/subscribe: publishing to topics, reading in order, and streams, which follow the log as it grows. It calls the
// functions of the schema agent and knows nothing of HTTP.
//
// # Files
//
//	types.go    events of the log, parameters, results and errors
//	service.go  Config with its defaults, Open, Run, Close
//	publish.go  Publish, and publications for later
//	read.go     pages of the log, single events, positions by time, topics, settings
//	tail.go     the newest events of the log in memory, for all who follow it, and what of them matches which filters
//	follow.go   streams, and the steps by which they and reads follow the log
//	subscription.go  subscriptions: their filters and settings, commits, seeks
//	subscribed.go    reads of subscriptions, cursors, and the filters that a process has compiled
//	upkeep.go   segments, retention, counts of topics, and publications that are due
//
// # Goroutines
//
// Run starts one for each loop: the listener for notifications, the tail, the notifier of other processes, what is due, and upkeep.
//
// # State and locks
//
// tail.mu guards the newest events and those who wait for more. It is held during no call of the database, and not while events are matched. The
// index of filters belongs to the loop of the tail. filterCache.mu guards which filters of subscriptions are compiled; these are immutable. A Stream belongs to one goroutine; streams share the events, which nobody changes.
//
// # Decisions
//
// docs/decisions: 010 the log, 011 streams, 012 subscriptions.
package topic
