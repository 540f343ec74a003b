//go:build !unix

package load

import "time"

// OwnCPU is zero: the CPU time is not known here.
func OwnCPU() time.Duration { return 0 }
