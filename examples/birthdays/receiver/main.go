// Receiver accepts greetings over HTTP and prints each once, however often it is sent. The Idempotency-Key identifies a greeting.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"
)

// receiver keeps the keys of the greetings it has accepted in memory. A production receiver would keep them on disk.
type receiver struct {
	out    io.Writer
	refuse string // the first name of the person whose greetings it refuses

	mu    sync.Mutex
	taken map[string]bool // by key
}

type greeting struct {
	FirstName string `json:"first_name"`
	LastName  string `json:"last_name"`
}

func (rc *receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var g greeting
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&g); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	key := r.Header.Get("Idempotency-Key")
	rc.mu.Lock()
	defer rc.mu.Unlock()
	switch {
	case rc.refuse != "" && g.FirstName == rc.refuse:
		_, _ = fmt.Fprintf(rc.out, "out of order for %s %s\n", g.FirstName, g.LastName)
		w.WriteHeader(http.StatusServiceUnavailable)
	case rc.taken[key]:
		_, _ = fmt.Fprintf(rc.out, "had %s already\n", key)
	default:
		rc.taken[key] = true
		_, _ = fmt.Fprintf(rc.out, "happy birthday, %s %s! %s\n", g.FirstName, g.LastName, key)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("receiver", flag.ContinueOnError)
	listen := flags.String("listen", "127.0.0.1:9000", "the address to listen on")
	refuse := flags.String("refuse", "", "the first name of the person whose greetings are answered 503")
	if err := flags.Parse(args); err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", *listen)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(out, "taking greetings at http://%s/greetings\n", listener.Addr())
	mux := http.NewServeMux()
	mux.Handle("POST /greetings", &receiver{out: out, refuse: *refuse, taken: make(map[string]bool)})
	server := &http.Server{Handler: mux, ReadTimeout: time.Minute, WriteTimeout: time.Minute}
	return server.Serve(listener)
}

func main() {
	if err := run(context.Background(), os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		_, _ = fmt.Fprintln(os.Stderr, "receiver:", err)
		os.Exit(1)
	}
}
