package main

import (
	"fmt"
	"net/netip"
	"net/url"
	"strings"

	"github.com/queued/queued/internal/hook"
	"github.com/queued/queued/internal/push"
	"github.com/queued/queued/sql"
)

// newSender returns what decides where queues may push to, and what sends there, for a server that listens at an address.
func (s *pushSettings) newSender(listen netip.AddrPort) (*hook.Guard, *push.Sender, error) {
	var allowed []string
	if s.PushAllow != "" {
		allowed = strings.Split(s.PushAllow, ",")
	}
	guard, err := hook.NewGuard(allowed)
	if err != nil {
		return nil, nil, fmt.Errorf("QUEUED_PUSH_ALLOW: %w", err)
	}
	guard = guard.ExceptSelf(listen)
	var proxy *url.URL
	if s.PushProxy != "" {
		if proxy, err = push.ParseProxy(s.PushProxy); err != nil {
			return nil, nil, fmt.Errorf("QUEUED_PUSH_PROXY: %w", err)
		}
	}
	return guard, push.NewSender(push.SenderConfig{Guard: guard, Proxy: proxy, Version: sql.Version()}), nil
}
