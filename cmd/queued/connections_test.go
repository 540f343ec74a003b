package main

import (
	"context"
	"encoding/base32"
	"fmt"
	"hash/crc32"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// documentedConns returns the number that a pattern finds in a document.
func documentedConns(t *testing.T, document, pattern string) int {
	t.Helper()
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(pattern).FindSubmatch(text)
	if found == nil {
		t.Fatalf("%s says nothing like %q", document, pattern)
	}
	n, err := strconv.Atoi(string(found[1]))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// unknownKey returns a text like that of a key, which is that of none.
func unknownKey(i int) string {
	encoding := base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)
	text := fmt.Sprintf("qk_aaaaaa%s_%s", string([]byte{'a' + byte(i/26), 'a' + byte(i%26)}), strings.Repeat("a", 26))
	sum := crc32.ChecksumIEEE([]byte(text))
	return text + encoding.EncodeToString([]byte{byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)})
}

// TestProcessOpensNoMoreConnectionsThanDocumented locks all tables, and makes more calls of all kinds than there are connections.
func TestProcessOpensNoMoreConnectionsThanDocumented(t *testing.T) {
	t.Parallel()
	const most = 36
	if n := documentedConns(t, "../../docs/operations.md", `with the defaults at most (\d+) connections`); n != most {
		t.Errorf("docs/operations.md says at most %d connections, want %d", n, most)
	}
	const others = most - queue.DefaultMaxConns
	if n := documentedConns(t, "../../docs/operations.md", "`QUEUED_MAX_CONNS` \\+ (\\d+) connections"); n != others {
		t.Errorf("docs/operations.md says QUEUED_MAX_CONNS + %d connections, want %d", n, others)
	}
	if n := documentedConns(t, "../../README.md", `A process opens (\d+) more at most`); n != others {
		t.Errorf("README.md says %d connections besides QUEUED_MAX_CONNS, want %d", n, others)
	}

	const key = "an-admin-key-of-tests"
	db := pgtest.New(t)
	p := serve(t, nil, "QUEUED_DATABASE_URL="+db.ServiceURL, "QUEUED_API_KEY="+key,
		"QUEUED_MAX_CONNS="+strconv.Itoa(queue.DefaultMaxConns), // the test's URL has another default
		"QUEUED_SECRET_KEY=a-key-that-seals-secrets")
	authorization := "Authorization: Bearer " + key
	configured := 0
	for _, found := range regexp.MustCompile(`(?m)^queued_pool_connections_max\{.*\} (\d+)$`).
		FindAllStringSubmatch(p.want(http.StatusOK, http.MethodGet, "/metrics", "", authorization).body, -1) {
		n, _ := strconv.Atoi(found[1]) // digits
		configured += n
	}
	if configured != most {
		t.Errorf("the pools and the listener may have %d connections, want %d", configured, most)
	}

	sql := pgtest.Connect(t, db.URL)
	tx := pgtest.LockTables(t, sql)
	unlock := func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }
	t.Cleanup(unlock)
	var calls sync.WaitGroup
	for _, call := range []struct{ method, path, body string }{
		{http.MethodPost, "/events", `{}`},
		{http.MethodPost, "/claim", `{}`},
		{http.MethodPost, "/events/1/nack", `{"receipt":"00000000-0000-0000-0000-000000000000"}`},
		{http.MethodGet, "/events/1", ""},
		{http.MethodGet, "/events", ""},
		{http.MethodGet, "/history", ""},
		{http.MethodPut, "/queues/jobs", `{}`},
		{http.MethodPost, "/queues/jobs/purge", ""},
		{http.MethodGet, "/readyz", ""},
		{http.MethodGet, "/metrics", ""},
		{http.MethodGet, "/schedules", ""},
		{http.MethodPut, "/owners/ada", `{"zone":"Europe/Berlin"}`},
		{http.MethodDelete, "/owners/ada", ""},
		{http.MethodPost, "/topics/news", `{}`},
		{http.MethodGet, "/log", ""},
		{http.MethodPut, "/subscriptions/reader", `{"filters":[]}`},
		{http.MethodDelete, "/subscriptions/reader", ""},
		{http.MethodPost, "/subscriptions/reader/read", `{}`},
		{http.MethodGet, "/keys", ""},
		{http.MethodGet, "/keys/aaaaaaaa", ""},
		{http.MethodDelete, "/keys/aaaaaaaa", ""},
		{http.MethodGet, "/sources", ""},
		{http.MethodDelete, "/sources/github", ""},
		{http.MethodPost, "/in/github", `{}`},
		{http.MethodGet, "/queues/jobs/push", ""},
		{http.MethodDelete, "/queues/jobs/push", ""},
	} {
		for range 10 {
			calls.Go(func() { _, _ = p.send(call.method, call.path, call.body, authorization) })
		}
	}
	for i := range 10 { // keys that are looked up
		calls.Go(func() {
			_, _ = p.send(http.MethodGet, "/events", "", fmt.Sprintf("Authorization: Bearer %s", unknownKey(i)))
		})
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		calls.Wait()
	}()
	watch, opened := pgtest.Connect(t, db.URL), 0
	for isOver := false; !isOver; {
		select {
		case <-ended:
			isOver = true
		default:
		}
		opened = max(opened, pgtest.Query[int](t, watch,
			`select count(*) from pg_stat_activity where datname = current_database() and application_name = 'queued' and backend_type = 'client backend'`))
	}
	t.Logf("%d connections at most", opened)
	if opened > most {
		t.Errorf("%d connections were open, want %d at most", opened, most)
	}
	if opened < most-4 {
		t.Errorf("only %d connections were open: the calls do not use what there is", opened)
	}
}
