// Package clienttest tests the Go client against servers. The module client/ cannot do so itself, because it requires no other module.
package clienttest
