// Package access decides who may do what: keys of callers, what they are allowed, and the audit. It calls the functions of the schema agent
// and knows nothing of HTTP.
//
// # Files
//
//	types.go    scopes, keys, parameters, results and errors
//	service.go  Config with its defaults, Open, Run, Close
//	key.go      the text of a key: how it is made, checked and hashed
//	grant.go    what a caller may do: scopes, patterns of queues and topics, the end of it
//	set.go      all keys in memory, and the authentication of a text
//	limit.go    rate limits
//	token.go    tokens for streams, which browsers put into a URL
//	keys.go     creating, listing, changing, rotating and revoking keys
//	use.go      when keys were used, and what was refused
//	audit.go    reading the audit
//
// # State and locks
//
// A set is immutable but for what keys count; the service replaces it as a whole. Service.renewing is held while a set is read from the
// database, so that an older one never replaces a newer one; Service.mu, which is locked after it, while it is replaced. Neither is held
// by a call of a known key.
package access
