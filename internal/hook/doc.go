// Package hook knows webhooks. Of those that come in it verifies who has sent one, over the bytes that came in, and maps it to an event. Those that
// go out it signs, and a Guard decides which URLs and addresses may be called. It decodes and encodes CloudEvents. It is pure: it knows neither HTTP routes
// nor SQL, and takes the time as an argument.
//
// The senders' own libraries are not used, because each is wrong for a server in one way: go-github takes sha1 signatures, and takes any body when
// secret and signature are both empty; stripe-go has no limit for timestamps in the future; standard-webhooks has no v1a; slack-go has the wall
// clock built in.
package hook
