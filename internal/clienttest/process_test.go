package clienttest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/queued/queued/client"
)

// workerEnv has the URL of the server for a test binary that is started as a worker.
const workerEnv = "QUEUED_CLIENT_TEST_WORKER"

// The size of the test with kills.
const (
	fireQueue = "fire"
	fireLease = time.Second
)

type fireJob struct{ N int }

// runWorkerProcess is a worker process. It writes a line for each event that a handler works on, and for each result of an ack.
func runWorkerProcess(url string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	c, err := client.New(client.Config{URL: url, HTTPClient: &http.Client{Transport: transportFunc(reportAcks)}, Timeout: 5 * time.Second})
	if err == nil {
		w := c.NewWorker(client.WorkerConfig{Queue: fireQueue, Concurrency: 8, Lease: fireLease, Name: fmt.Sprint(os.Getpid())})
		client.Handle(w, "fire", func(ctx context.Context, j client.Job[fireJob]) (any, error) {
			report("run %d %d", j.ID, j.Payload.N)
			sleep(ctx, time.Duration(j.ID%8)*time.Millisecond) // some work, so that events are under lease when something happens
			return j.Payload, nil
		})
		err = w.Run(ctx)
	}
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// report writes a line at once: what was reported is known, even if the process ends.
func report(format string, args ...any) { _, _ = fmt.Fprintf(os.Stdout, format+"\n", args...) }

// reportAcks sends a request and reports the acks that the server has answered.
func reportAcks(r *http.Request) (*http.Response, error) {
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil || r.URL.Path != "/ack" || resp.StatusCode != http.StatusOK {
		return resp, err
	}
	text, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil {
		return nil, err
	}
	resp.Body = io.NopCloser(bytes.NewReader(text))
	sent, err := r.GetBody()
	if err != nil {
		return nil, err
	}
	var acks struct{ Events []client.Ack }
	var results struct{ Results []client.AckResult }
	if err := json.NewDecoder(sent).Decode(&acks); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &results); err != nil {
		return nil, err
	}
	var lines strings.Builder
	for i, result := range results.Results {
		fmt.Fprintf(&lines, "ack %d %s %d\n", result.ID, acks.Events[i].Receipt, result.Status)
	}
	_, _ = io.WriteString(os.Stdout, lines.String())
	return resp, nil
}
