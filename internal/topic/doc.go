// Package topic is the log of publish/subscribe: publishing to topics, reading in order, and streams, which follow the log as it grows. It calls the
// functions of the schema agent and knows nothing of HTTP.
//
// # Files
//
//	types.go    events of the log, parameters, results and errors
//	service.go  Config with its defaults, Open, Run, Close
//	publish.go  Publish, in the group commits of the queue, and publications for later
//	read.go     pages of the log, single events, positions by time, topics, settings
//	tail.go     the newest events of the log in memory, for all who follow it, and what of them matches which filters
//	follow.go   streams, and the steps by which they and reads follow the log
//	subscription.go  subscriptions: their filters and settings, commits, seeks
//	subscribed.go    reads of subscriptions, and cursors
//	filters.go       the filters of subscriptions that a process has compiled
//	subscribed_stream.go  streams of subscriptions
//	watch.go    what becomes of the subscriptions that somebody waits for or streams
//	router.go   delivery into queues, for the subscriptions that are level
//	catchup.go  the same for those that are not, and for replays
//	upkeep.go   segments, retention, counts of topics, and publications that are due
//
// # Goroutines
//
// Run starts one for each loop: the subscriber to notifications, the tail, the watch of subscriptions, the notifier of other processes, due publications, the
// router, catching up, and upkeep.
//
// # State and locks
//
// tail.mu guards the newest events, those that this process has appended and the tail has not, and those who wait for more. It is held during no call of the database, and not while events are matched. The
// index of filters belongs to the loop of the tail. filterCache.mu guards which filters of subscriptions are compiled; these are immutable.
// watches.mu guards the known state of subscriptions that somebody waits for, also during no call of the database. No two of these are held at once.
// router.mu guards the router's state, and is held while a batch is delivered; tail.mu may be locked then. The state of catching up belongs to its loop.
// A Stream belongs to one goroutine; streams share the events, which nobody changes.
//
// # Decisions
//
// docs/decisions: 010 the log, 011 streams, 012 subscriptions, 014 the router.
package topic
