//go:build unix

package faults

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/porttest"
)

// transactionResent is the broken build of this file.
var transactionResent = build{name: "a group commit that is sent again after its connection is lost", edits: []edit{{
	"internal/queue/transaction.go", "pool.SendBatch(ctx, tx.batch)", `func() error {
		err := pool.SendBatch(ctx, tx.batch)
		again, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		for err != nil && again.Err() == nil {
			same := new(pgx.Batch)
			for _, q := range tx.batch.QueuedQueries {
				same.QueuedQueries = append(same.QueuedQueries, &pgx.QueuedQuery{SQL: q.SQL, Arguments: q.Arguments, Fn: q.Fn})
			}
			err = pool.SendBatch(again, same)
		}
		return err
	}()`,
}}}

// link is the network between queued and its server.
type link struct {
	t     *testing.T
	proxy *toxiproxy.Proxy
}

func newLink(t *testing.T, server *Server) *link {
	t.Helper()
	return newLinkTo(t, "postgres", server.Addr())
}

// newLinkTo is newLink to any address, of something with a name.
func newLinkTo(t *testing.T, name, address string) *link {
	t.Helper()
	control := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(prometheus.NewRegistry()), zerolog.Nop())
	proxy := toxiproxy.NewProxy(control, name, fmt.Sprintf("127.0.0.1:%d", porttest.Free(t)), address)
	if err := proxy.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Stop)
	return &link{t, proxy}
}

// databaseURL is the URL of the server through the link.
func (c *link) databaseURL(server *Server) string {
	u, err := url.Parse(server.URL())
	if err != nil {
		c.t.Fatal(err)
	}
	u.Host = c.proxy.Listen
	return u.String()
}

// A linkFault breaks a link; do returns a function that repairs it.
type linkFault struct {
	name string
	do   func(c *link) (repair func())
}

func toxic(text string) func(c *link) func() {
	return func(c *link) func() {
		c.t.Helper()
		added, err := c.proxy.Toxics.AddToxicJson(strings.NewReader(text))
		if err != nil {
			c.t.Fatal(err)
		}
		return func() {
			if err := c.proxy.Toxics.RemoveToxic(c.t.Context(), added.Name); err != nil {
				c.t.Fatal(err)
			}
		}
	}
}

var linkFaults = []linkFault{
	{"answers are lost", toxic(`{"type":"timeout","stream":"downstream","attributes":{"timeout":0}}`)},
	{"connections are closed and refused", func(c *link) func() {
		c.proxy.Stop()
		return func() {
			if err := c.proxy.Start(); err != nil {
				c.t.Fatal(err)
			}
		}
	}},
	{"requests are lost", toxic(`{"type":"timeout","stream":"upstream","attributes":{"timeout":0}}`)},
	{"connections are reset before the answer", toxic(`{"type":"reset_peer","stream":"downstream","attributes":{"timeout":0}}`)},
	{"answers are delayed", toxic(`{"type":"latency","stream":"downstream","attributes":{"latency":500,"jitter":400}}`)},
}

// partition separates one of two processes from the server, with each of the link faults in turn.
func partition(t *testing.T, b build, l *ledger, rounds int) {
	t.Helper()
	server := Start(t, Config{})
	wire := newLink(t, server)
	servers := []*queued{startQueued(t, b, server.URL()), startQueued(t, b, wire.databaseURL(server))}
	b.breakDatabase(t, server)
	d := startLoad(t, l, servers...)
	d.addInserters(2, false) // so that some call is always running
	longest := map[string]time.Duration{}
	for i := range rounds {
		d.awaitInserts(20)
		fault := linkFaults[i%len(linkFaults)]
		repair := fault.do(wire)
		pause(time.Second) // the duration of the partition
		repair()
		longest[fault.name] = max(longest[fault.name], servers[1].awaitReady(recoveryLimit))
	}
	t.Logf("%d partitions: ready again within %v", rounds, longest)
	d.awaitInserts(20)
	d.finish(server.AdminURL())
}

func TestNothingIsLostOrDoneTwiceDuringPartitions(t *testing.T) {
	t.Parallel()
	runScenario(t, partition, 5, 20)
}

func TestBrokenBuildWithResentTransactionIsCaught(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	expectViolation(t, partition, transactionResent, 10)
}
