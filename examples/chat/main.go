// Chat serves a page with chat rooms, each a topic of queued, which the page reads as Server-Sent Events.
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"time"
)

//go:embed index.html
var page []byte

// newHandler serves the page, and passes what it asks for on to queued, so that it comes from one origin.
func newHandler(target *url.URL, key string) http.Handler {
	proxy := &httputil.ReverseProxy{
		FlushInterval: -1, // an event is passed on at once
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = target.Host
			r.Out.Header.Del("Origin") // the page's, which queued does not know
			r.Out.Header.Del("Sec-Fetch-Site")
			if key != "" {
				r.Out.Header.Set("Authorization", "Bearer "+key)
			}
		},
	}
	sameOrigin := http.NewCrossOriginProtection().Handler
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write(page)
	})
	mux.Handle("GET /stream", proxy)
	mux.Handle("POST /topics/{topic}", sameOrigin(proxy))
	return mux
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("chat", flag.ContinueOnError)
	listen := flags.String("listen", "127.0.0.1:9001", "the address to listen on")
	queued := flags.String("queued", "http://127.0.0.1:8080", "the URL of queued")
	key := flags.String("key", "", "the API key of queued")
	if err := flags.Parse(args); err != nil {
		return err
	}
	target, err := url.Parse(*queued)
	if err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", *listen)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(out, "chat at http://%s/#lobby\n", listener.Addr())
	server := &http.Server{Handler: newHandler(target, *key), ReadHeaderTimeout: 10 * time.Second}
	return server.Serve(listener)
}

func main() {
	if err := run(context.Background(), os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		_, _ = fmt.Fprintln(os.Stderr, "chat:", err)
		os.Exit(1)
	}
}
