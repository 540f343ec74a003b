//go:build race

package pgtest

// HasRaceDetector tells that this program was built with the race detector.
const HasRaceDetector = true
