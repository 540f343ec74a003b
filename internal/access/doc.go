// Package access decides who may do what: keys of callers, their sessions, what they are allowed, and the audit. It calls the functions of the schema agent
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
//	session.go  sessions of people in a browser
//	keys.go     creating, listing, changing, rotating and revoking keys
//	copies.go   copies of keys, for other cells and from them
//	use.go      when keys were used, and what was refused
//	audit.go    reading the audit
//
// # State and locks
//
// A set is immutable but for the usage of keys and the texts that were refused; it is a pg.Replica, which replaces it as a whole. Service.mu guards the refusals that
// go into the audit and who waits for changes, sessions.mu the sessions with open streams; neither is held while another lock is taken. A call of a known key holds no lock.
package access
