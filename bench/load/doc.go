// Package load is the client side of a measurement: connections to a queued server, what their requests took, and an account of
// every event.
//
// A Client is one goroutine with one keep-alive connection. Client and server mostly share a machine, so a client
// sends prepared bytes and reads responses in place. All clients of a run share a Meter, which counts and times, and an Account,
// which knows by its id what became of each event; both are safe for concurrent use.
package load
