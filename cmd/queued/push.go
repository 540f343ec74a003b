package main

import (
	"fmt"
	"net/netip"
	"net/url"
	"strings"

	"github.com/queued/queued/internal/egress"
	"github.com/queued/queued/sql"
)

// newSender returns the guard, which decides where queues may push to, and the sender of pushes, for a server that listens at an address.
func (s *pushSettings) newSender(listen netip.AddrPort) (*egress.Guard, *egress.Sender, error) {
	var allowed []string
	if s.PushAllow != "" {
		allowed = strings.Split(s.PushAllow, ",")
	}
	guard, err := egress.NewGuard(allowed)
	if err != nil {
		return nil, nil, fmt.Errorf("QUEUED_PUSH_ALLOW: %w", err)
	}
	guard = guard.ExceptSelf(listen)
	var proxy *url.URL
	if s.PushProxy != "" {
		if proxy, err = egress.ParseProxy(s.PushProxy); err != nil {
			return nil, nil, fmt.Errorf("QUEUED_PUSH_PROXY: %w", err)
		}
	}
	return guard, egress.NewSender(egress.SenderConfig{Guard: guard, Proxy: proxy, Version: sql.Version()}), nil
}
