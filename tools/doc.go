// Package tools has no code. Its module pins the tools of the Makefile; with a package in it, go vet ./... succeeds in every module.
package tools
