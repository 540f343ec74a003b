//go:build unix

package faults

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// preloadClock moves the clock of PostgreSQL, which asks the C library: this is loaded before it. libfaketime, which stepClock uses, reads its file anew with each look at the clock, in
// the handlers of signals, too, where that is not allowed: PostgreSQL crashed about once in a hundred hours. And a handler that interrupts a wait gets the real time from it.
const preloadClock = `
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int64_t *moved; // nanoseconds
static time_t base;    // seconds

__attribute__((constructor)) static void init(void) {
	base = atoll(getenv("MOVED_CLOCK_BASE"));
	moved = mmap(0, 8, PROT_READ, MAP_SHARED, open(getenv("MOVED_CLOCK"), O_RDONLY | O_CLOEXEC), 0);
	if (moved == MAP_FAILED)
		abort();
}

int clock_gettime(clockid_t id, struct timespec *t) {
	int failed = syscall(SYS_clock_gettime, id, t);
	if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
		t->tv_sec += base + __atomic_load_n(moved, __ATOMIC_RELAXED) / 1000000000;
	return failed;
}

int gettimeofday(struct timeval *t, void *zone) {
	struct timespec now;
	int failed = clock_gettime(CLOCK_REALTIME, &now);
	t->tv_sec = now.tv_sec;
	t->tv_usec = now.tv_nsec / 1000;
	return failed;
}

time_t time(time_t *t) {
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	if (t)
		*t = now.tv_sec;
	return now.tv_sec;
}
`

// clockMoved is the program of this repository on a clock that a test moves. A program in Go asks the kernel, and not the C library, so the runtime of Go is built with an overlay: the
// clock of the wall and the monotonic one, which timers go by, are ahead by the number in the same mapped file.
var clockMoved = build{name: "on a clock that a test moves", edits: []edit{
	{goRoot + "src/runtime/time.go", "\treturn time_now()\n}", `	sec, nsec, mono = time_now()
	return sec + movedClockBase + movedClockBy()/1e9, nsec, mono + movedClockBy()
}

//go:linkname movedClock
var movedClock *int64 // nanoseconds, whole seconds; nil: not yet

//go:linkname movedClockBase
var movedClockBase int64 // seconds that the clock of the wall is ahead besides

//go:nosplit
func movedClockBy() int64 {
	if p := movedClock; p != nil {
		return atomic.Loadint64(p)
	}
	return 0
}`},
	{goRoot + "src/runtime/time_nofake.go", "return nanotime1()", "return nanotime1() + movedClockBy()"},
	{"cmd/queued/movedclock.go", "", `package main

import (
	"errors"
	"os"
	"strconv"
	"syscall"
	"unsafe"
)

//go:linkname movedClock runtime.movedClock
var movedClock *int64

//go:linkname movedClockBase runtime.movedClockBase
var movedClockBase int64

func init() {
	base, err := strconv.ParseInt(os.Getenv("MOVED_CLOCK_BASE"), 10, 64)
	file, err2 := os.Open(os.Getenv("MOVED_CLOCK"))
	page, err3 := syscall.Mmap(int(file.Fd()), 0, 8, syscall.PROT_READ, syscall.MAP_SHARED)
	if err := errors.Join(err, err2, err3); err != nil {
		panic(err)
	}
	movedClockBase, movedClock = base, (*int64)(unsafe.Pointer(&page[0]))
}
`},
}}

// A movedClock is the clock of a PostgreSQL and of programs, which a test moves on.
type movedClock struct {
	base    time.Duration // it is ahead of that of this process at first
	moved   *int64        // since then, in nanoseconds, in the file that all have mapped
	file    string
	preload string
}

// newMovedClock returns a clock that shows a time.
func newMovedClock(t *testing.T, at time.Time) *movedClock {
	t.Helper()
	dir := t.TempDir()
	for above := dir; above != filepath.Clean(os.TempDir()) && above != "/"; above = filepath.Dir(above) {
		_ = os.Chmod(above, 0o755) // PostgreSQL runs as another user
	}
	c := &movedClock{base: time.Until(at).Truncate(time.Second), file: filepath.Join(dir, "clock"), preload: filepath.Join(dir, "clock.so")}
	compile := exec.CommandContext(t.Context(), "cc", "-shared", "-fPIC", "-O", "-x", "c", "-o", c.preload, "-")
	compile.Stdin = strings.NewReader(preloadClock)
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("this test needs a C compiler, cc (for example `apt-get install gcc libc6-dev`): %v\n%s", err, out)
	}
	err := os.WriteFile(c.file, make([]byte, 8), 0o644)
	file, err2 := os.OpenFile(c.file, os.O_RDWR, 0)
	page, err3 := syscall.Mmap(int(file.Fd()), 0, 8, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err := errors.Join(err, err2, err3, file.Close()); err != nil {
		t.Fatal(err)
	}
	c.moved = (*int64)(unsafe.Pointer(&page[0]))
	return c
}

// environ is that of a program whose clock of the wall is wrong by so much.
func (c *movedClock) environ(wrong time.Duration) []string {
	return []string{"MOVED_CLOCK=" + c.file, fmt.Sprintf("MOVED_CLOCK_BASE=%d", int64((c.base + wrong).Seconds()))}
}

// now returns the time that the clock shows.
func (c *movedClock) now() time.Time {
	return time.Now().Add(c.base + time.Duration(atomic.LoadInt64(c.moved))).UTC()
}

// move moves the clock on, by whole seconds.
func (c *movedClock) move(by time.Duration) {
	atomic.AddInt64(c.moved, int64(by.Truncate(time.Second)))
}
