// Package load is the client side of a measurement: connections to a queued server, the times of their requests, and an account of
// every event.
//
// A Client is one goroutine with one keep-alive connection. Client and server mostly share a machine, so a client
// sends prepared bytes and reads responses in place. All clients of a run share a Meter, which counts and times, and an Account,
// which knows the state of each event by its id; both are safe for concurrent use.
package load
