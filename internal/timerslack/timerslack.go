// Package timerslack lets the kernel put off the wake-ups of a process a little.
//
// A thread of Go's runtime, sysmon, sleeps for 20 µs at a time while goroutines run, and for a millisecond after they have stopped. In a server that is idle between two requests these sleeps
// cost a tenth of its processor time, and where few requests come a sixth (docs/decisions/029-cost-of-a-life.md, "Later: wake-ups"). With a slack the kernel has them end later. The runtime asks
// for no time that short anywhere else: its timers are rounded up to milliseconds.
package timerslack

import "time"

// Slack is by how much sleeps may be longer.
const Slack = time.Millisecond
