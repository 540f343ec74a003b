// Package match finds, among many filters, those that want an event.
package match
