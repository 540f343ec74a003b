package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/crowd"
	httpapi "github.com/queued/queued/internal/http"
)

// httpServer serves from the start of the program on, and gets the handler of the API once the services are open.
type httpServer struct {
	server  *http.Server
	handler atomic.Pointer[http.Handler]
	serving *task
}

// startHTTP serves a listener, at first with the handler of starting. tlsConfig is nil for plain HTTP.
func startHTTP(listener net.Listener, tlsConfig *tls.Config, starting *httpapi.Server, queryTimeout time.Duration, logger zerolog.Logger) *httpServer {
	s := &httpServer{server: starting.HTTPServer()}
	s.setHandler(starting)
	s.server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*s.handler.Load()).ServeHTTP(w, r) })
	s.server.WriteTimeout += queryTimeout // the answer to a query is written after it
	s.start(listener, tlsConfig, logger)
	return s
}

// start serves a listener. A quarter of the files that the process may open is left to other things than connections of clients that send nothing.
func (s *httpServer) start(listener net.Listener, tlsConfig *tls.Config, logger zerolog.Logger) {
	crowd.Watch(s.server, crowd.OpenFiles()*3/4, logger)
	s.server.TLSConfig = tlsConfig
	s.serving = start(func() error {
		if tlsConfig != nil {
			return s.server.ServeTLS(listener, "", "")
		}
		return s.server.Serve(listener)
	})
}

// setHandler has api answer the requests from now on.
func (s *httpServer) setHandler(api *httpapi.Server) {
	handler := api.Handler()
	s.handler.Store(&handler)
}

// shutdown closes the port and lets requests in progress finish, and cuts them off after limit.
func (s *httpServer) shutdown(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := s.server.Shutdown(ctx)
	s.close()
	if err != nil {
		return fmt.Errorf("%w: requests still under way after %s were cut off (QUEUED_SHUTDOWN_TIMEOUT)", errUnclean, limit)
	}
	return nil
}

// close cuts off the requests in progress.
func (s *httpServer) close() {
	_ = s.server.Close() // it also closes the listener
	<-s.serving.done
}

// noKey is the error of a server without any key at an address that other machines can reach. The user has set that by the flag or variable name.
func noKey(name string, tcp *net.TCPAddr) error {
	return usagef("%s: %s can be reached from other machines, and there is no key that callers could use. Either create one with "+
		"\"queued keys create --scope admin\", or set QUEUED_API_KEY (or QUEUED_API_KEY_FILE) to a secret; callers must then send it as "+
		"\"Authorization: Bearer …\". Or listen on loopback alone, such as 127.0.0.1:%d.", name, tcp, tcp.Port)
}

// listen opens an address that the user has set by the flag or variable name.
func listen(ctx context.Context, name, address string) (*net.TCPListener, error) {
	tcp, err := resolve(ctx, address)
	if err != nil {
		return nil, usagef("%s: got %q; %s", name, address, err)
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", tcp.String())
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%s: %s is in use by another process; stop that one, or choose another port "+
			"(port 0 takes any that is free)", name, tcp)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("%s: not allowed to listen on %s; ports below 1024 need a privilege", name, tcp)
	case err != nil:
		return nil, fmt.Errorf("%s: cannot listen on %s: %w", name, tcp, err)
	}
	return listener.(*net.TCPListener), nil
}

// resolve looks up the host of an address, once, so that the address that is checked is the one that is used. Where a name has both, it
// prefers IPv4, as net.Listen does. The IP is nil for every interface. The look-up ends with ctx.
func resolve(ctx context.Context, address string) (*net.TCPAddr, error) {
	host, portText, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return nil, err
	}
	tcp := &net.TCPAddr{Port: int(port)}
	if host == "" {
		return tcp, nil
	}
	addrs, err := net.DefaultResolver.LookupIPAddr(ctx, host)
	if err != nil {
		return nil, fmt.Errorf("the host cannot be found: %w", err)
	}
	best := addrs[max(0, slices.IndexFunc(addrs, func(addr net.IPAddr) bool { return addr.IP.To4() != nil }))]
	tcp.IP, tcp.Zone = best.IP, best.Zone
	return tcp, nil
}

func isLoopback(tcp *net.TCPAddr) bool { return tcp.IP != nil && tcp.IP.IsLoopback() }

// localURL returns the URL by which this machine reaches a server that listens on tcp.
func localURL(tcp *net.TCPAddr, isTLS bool) string {
	local := *tcp
	if local.IP == nil || local.IP.IsUnspecified() {
		local.IP = net.IPv4(127, 0, 0, 1) // a listener on every interface accepts IPv4, too
	}
	scheme := "http"
	if isTLS {
		scheme = "https"
	}
	return scheme + "://" + local.String()
}
