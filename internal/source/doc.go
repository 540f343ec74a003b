// Package source receives webhooks: sources are their senders, with the secrets that prove who they are, and with what becomes of a delivery. It calls the
// functions of the schema agent, and inserts and publishes through packages queue and topic. Of HTTP it knows header fields only, as package hook does.
//
// # Files
//
//	types.go    sources, deliveries, results and errors
//	service.go  Config with its defaults, Open, Run, Close
//	set.go      all sources in memory, with their secrets opened
//	receive.go  what becomes of a delivery: admitted, verified, mapped, inserted or published
//	counts.go   what has come in, for the database and for metrics
//	sources.go  putting, getting, listing, deleting and testing sources
//
// # State and locks
//
// The set of sources is immutable; the service replaces it as a whole. Service.renewing is held while a set is read from the database, so that an
// older one never replaces a newer one. Service.mu guards the tallies, which outlive changes of their source.
package source
