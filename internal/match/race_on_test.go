//go:build race

package match_test

// raceDetector tells that this binary has the race detector, under which a sync.Pool drops some of what it is given.
const raceDetector = true
