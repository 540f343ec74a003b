package main

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// How much of garbage there may be for each 100 bytes that are in use when a collection begins: see garbagePercent.
const (
	// mostGarbage holds for a small heap, which is the usual one, some 10 MB under full load: another 10 MB save a fifteenth of the processors' time.
	mostGarbage = 200
	// leastGarbage holds for a large heap. Bodies of requests have no pointers, so that a collection costs little for what it looks at.
	leastGarbage = 15
	// garbageBytes bounds the garbage between the two: bodies are what makes a heap large, when the database is slow or gone, and each leaves as much garbage again as it grows.
	garbageBytes = 48 << 20
)

// garbagePercent returns GOGC for a heap of which so many bytes are in use.
func garbagePercent(inUse uint64) int {
	return int(min(max(garbageBytes*100/max(inUse, 1), leastGarbage), mostGarbage))
}

// boundGarbage sets GOGC after each collection by what that has found to be in use.
func boundGarbage() {
	type collected struct{ _ *byte } // with a pointer: the runtime may put small objects without one together, and such are not finalized
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	percent := mostGarbage
	debug.SetGCPercent(percent)
	var afterEach func(*collected)
	afterEach = func(c *collected) {
		metrics.Read(live)
		if p := garbagePercent(live[0].Value.Uint64()); p != percent {
			percent = p
			debug.SetGCPercent(p)
		}
		runtime.SetFinalizer(c, afterEach)
	}
	runtime.SetFinalizer(new(collected), afterEach)
}
