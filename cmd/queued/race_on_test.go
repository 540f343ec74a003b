//go:build race

package main

// raceFlag is the flag of go build by which the tests were built.
const raceFlag = "-race"
