//go:build !race

package pgtest

// hasRaceDetector tells that this program was built with the race detector.
const hasRaceDetector = false
