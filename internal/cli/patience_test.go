package cli

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

func TestEndOfAWaitIsNoFailureOfTheServer(t *testing.T) {
	t.Parallel()
	began := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		began <- struct{}{}
		<-r.Context().Done()
	}))
	t.Cleanup(server.Close)
	for _, c := range []struct {
		name      string
		cause     error // of the end of the call; nil: the command's own deadline
		isTrouble bool
	}{
		{"the time of --wait is over", nil, false},
		{"the command was interrupted", context.Canceled, false},
		{"the server has not answered a try", errors.New("no answer"), true},
	} {
		status := &statusLine{w: io.Discard}
		p := &patientTransport{base: http.DefaultTransport, status: status, patience: patience{limit: time.Hour}, server: server.URL}
		ctx, cancel := context.WithCancelCause(t.Context())
		if c.cause == nil {
			var stop context.CancelFunc
			ctx, stop = context.WithTimeout(ctx, time.Second)
			defer stop()
		}
		go func() {
			<-began
			if c.cause != nil {
				cancel(c.cause)
			}
		}()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		if resp, err := p.RoundTrip(req); err == nil {
			_ = resp.Body.Close()
			t.Fatalf("%s: it was answered", c.name)
		}
		status.mu.Lock()
		if isTrouble := !status.since.IsZero(); isTrouble != c.isTrouble {
			t.Errorf("%s: it waits for the server is %t, want %t", c.name, isTrouble, c.isTrouble)
		}
		status.mu.Unlock()
		status.endWait()
		cancel(nil)
	}
}
