// Package egress sends HTTP requests to endpoints that others have configured. A Guard decides which URLs and addresses may be called, a Sender sends
// with a limit on everything that a response may take, and a Signer signs the requests. It knows neither SQL nor the purpose of a request.
//
// # Files
//
//	guard.go     which URLs and addresses may be called
//	sender.go    one request, with a limit on everything
//	response.go  what came of it, in plain words
//	header.go    the header fields that users may add; the URL of a proxy
//	sign.go      signatures of Standard Webhooks
//
// # Decisions
//
// docs/decisions: 016 outgoing requests.
package egress
