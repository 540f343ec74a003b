// Package webhook receives webhooks. Sources are their senders, with the secrets that prove who they are, and with the handling of a delivery: it is
// verified over the bytes that came in, and mapped to an event. The package calls the functions of the schema agent, and inserts and publishes through
// packages queue and topic. Of HTTP it knows header fields only.
//
// The senders' own libraries are not used, because each is wrong for a server in one way: go-github takes sha1 signatures, and takes any body when
// secret and signature are both empty; stripe-go has no limit for timestamps in the future; standard-webhooks has no v1a; slack-go has the wall
// clock built in.
//
// # Files
//
//	types.go    sources, deliveries, results and errors
//	service.go  Config with its defaults, Open, Run, Close
//	set.go      all sources in memory, with their secrets opened
//	receive.go  what becomes of a delivery: admitted, verified, mapped, inserted or published
//	verify.go   who has sent a delivery, by its header and its bytes; pure
//	map.go      the event that a delivery becomes; pure
//	template.go the texts that sources map with; pure
//	counts.go   what has come in, for the database and for metrics
//	log.go      the log of deliveries
//	redact.go   what of a refused body may be shown; pure
//	sources.go  putting, getting, listing, deleting and testing sources
//
// # State and locks
//
// The set of sources is immutable, and a pg.Replica. Service.mu guards the tallies, which outlive changes of their source.
package webhook
