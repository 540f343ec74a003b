//go:build !race

package main

// raceFlag builds the program as the tests were built.
const raceFlag = ""
