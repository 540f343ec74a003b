//go:build race

package pgtest

const hasRaceDetector = true
