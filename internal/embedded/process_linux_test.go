package embedded

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"testing"
)

// onThreadThatEnds runs f on a thread of its own that is gone when it returns.
func onThreadThatEnds(t *testing.T, f func()) {
	t.Helper()
	thread := make(chan int)
	go func() {
		runtime.LockOSThread()
		if syscall.Gettid() == os.Getpid() {
			// Go never ends the main thread. While it is locked here, f runs on another one.
			defer runtime.UnlockOSThread()
			onThreadThatEnds(t, f)
			thread <- 0
			return
		}
		f()
		thread <- syscall.Gettid() // still locked, the thread ends with the goroutine
	}()
	if id := <-thread; id != 0 {
		eventually(t, "the thread ended", func() bool { return !exists(fmt.Sprintf("/proc/self/task/%d", id)) })
	}
}

func TestServerOutlivesTheThreadThatStartedIt(t *testing.T) {
	t.Parallel()
	dir := newCluster(t)
	var server *Server
	var err error
	onThreadThatEnds(t, func() { server, err = Start(t.Context(), noFsync(dir)) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, server) })
	// A server that was told to shut down would break this session.
	run(t, server.URL(), "select pg_sleep(0.3)")
}
