//go:build !unix

package match_test

import "time"

var began = time.Now()

// processorTime returns the time that has passed, in place of the processor time.
func processorTime() time.Duration { return time.Since(began) }
