package main

import (
	"runtime"
	"runtime/metrics"
	"testing"
)

func TestGarbageIsAFixedAmountWhereTheHeapIsLarge(t *testing.T) { //nolint:paralleltest // it sets GOGC for the process
	const mib = 1 << 20
	for inUse, want := range map[uint64]int{0: 200, mib: 200, 24 * mib: 200, 48 * mib: 100, 192 * mib: 25, 1024 * mib: 15} {
		if got := garbagePercent(inUse); got != want {
			t.Errorf("GOGC=%d with %d bytes in use, want %d", got, inUse, want)
		}
	}

	boundGarbage()
	percent := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	await := func(about string, isReached func(uint64) bool) {
		t.Helper()
		for range 1000 {
			runtime.GC()
			if metrics.Read(percent); isReached(percent[0].Value.Uint64()) {
				return
			}
			runtime.Gosched() // for what runs after each collection
		}
		t.Fatalf("%s: GOGC=%d", about, percent[0].Value.Uint64())
	}
	bodies := make([]byte, 512*mib)
	await("with 512 MiB in use", func(n uint64) bool { return n == leastGarbage })
	runtime.KeepAlive(bodies)
	await("when they are gone", func(n uint64) bool { return n > leastGarbage })
}
