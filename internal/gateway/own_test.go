package gateway

import (
	"bytes"
	"io"
	"net/http"
	"runtime"
	"sync"
	"testing"
)

func TestHomeIsAskedOnceAboutACallerOfManyCalls(t *testing.T) {
	t.Parallel()
	home, other := newFakeCell(t, 0), newFakeCell(t, 1)
	const calls = 20
	asked, answer := make(chan string, calls), make(chan struct{})
	inner := home.server.Config.Handler
	home.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/keys/self" {
			inner.ServeHTTP(w, r)
			return
		}
		asked <- r.Header.Get("Authorization")
		<-answer
		if r.Header.Get("Authorization") == "Bearer wrong" {
			refuseCaller(w, r)
			return
		}
		_, _ = io.WriteString(w, `{"scopes":["read"]}`)
	})
	e := setup(t, nil, home, other)
	var calling sync.WaitGroup
	for i := range calls {
		key, status := "Authorization: Bearer right", http.StatusOK
		if i%2 == 0 {
			key, status = "Authorization: Bearer wrong", http.StatusUnauthorized
		}
		calling.Go(func() {
			got := e.call("GET", "/version", "", key)
			if got.status != status && got.status != http.StatusServiceUnavailable { // on a machine that is too busy to have all wait within the time that home has
				t.Errorf("a call with %s was answered %d %s", key, got.status, got.body)
			}
		})
	}
	e.until("all calls wait for home", func() bool {
		stacks := make([]byte, 8<<20)
		return bytes.Count(stacks[:runtime.Stack(stacks, true)], []byte(".(*Gateway).check(")) >= calls
	})
	close(answer)
	calling.Wait()
	if n := len(asked); n > 2 {
		t.Errorf("home was asked %d times about two callers", n)
	}
}
