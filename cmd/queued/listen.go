package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"
)

func hostPort(host string, port int) string {
	return net.JoinHostPort(host, strconv.Itoa(port))
}

// listen opens address, a valid value of --listen which the user gave as name. Without an API
// key it refuses, before the port is open, whatever others could reach.
func listen(ctx context.Context, name, address string, hasKey bool) (*net.TCPListener, error) {
	tcp, err := resolve(ctx, address)
	if err != nil {
		return nil, usagef("%s: got %q; %s", name, address, err)
	}
	if !hasKey && !isLoopback(tcp) {
		return nil, usagef("%s: %s can be reached from other machines, and there is no API key. "+
			"Either set QUEUED_API_KEY (or QUEUED_API_KEY_FILE) to a secret that callers must then send as "+
			"\"Authorization: Bearer …\", or listen on loopback alone, such as 127.0.0.1:%d.", name, address, tcp.Port)
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

// resolve looks the host of address up once, so that what is judged is what is listened on.
// The IP is nil for every interface.
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
	best := addrs[0]
	for _, addr := range addrs { // as net.Listen does, prefer IPv4 where a name has both
		if addr.IP.To4() != nil {
			best = addr
			break
		}
	}
	tcp.IP, tcp.Zone = best.IP, best.Zone
	return tcp, nil
}

func isLoopback(tcp *net.TCPAddr) bool { return tcp.IP != nil && tcp.IP.IsLoopback() }

// localURL is where a program on this machine reaches a server that listens on tcp.
func localURL(tcp *net.TCPAddr) string {
	ip := tcp.IP
	switch {
	case ip == nil || ip.Equal(net.IPv4zero), ip.Equal(net.IPv6unspecified):
		// Listening on every interface is dual-stack, so IPv4's loopback reaches both.
		ip = net.IPv4(127, 0, 0, 1)
	}
	local := net.TCPAddr{IP: ip, Port: tcp.Port, Zone: tcp.Zone}
	return "http://" + local.String()
}
