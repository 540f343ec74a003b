//go:build unix

package faults

import "testing"

// Replication determines when a primary's commits return.
type Replication bool

// The kinds of replication.
const (
	Asynchronous Replication = false // without waiting for the standby
	Synchronous  Replication = true  // after the standby has written them to its disk
)

// Pair is a primary and its standby. A failover changes which server is which.
type Pair struct {
	Primary, Standby *Server

	replication Replication
	first       [2]*Server
}

// StartPair makes and starts two servers with the same settings. They end with the test.
func StartPair(t *testing.T, replication Replication, cfg Config) *Pair {
	t.Helper()
	primary := Start(t, cfg)
	p := &Pair{Primary: primary, Standby: primary.Standby(cfg), replication: replication}
	p.first = [2]*Server{p.Primary, p.Standby}
	if replication == Synchronous {
		p.Primary.RequireSync(p.Standby)
	}
	return p
}

// URL connects to the database queued as the ordinary role that owns it, on the first of the two servers that answers,
// in the order of their creation.
func (p *Pair) URL() string { return p.first[0].URL(p.first[1]) }

// Failover promotes the standby, after the primary was killed or frozen. The servers swap roles, and
// the new primary is asynchronous until Rejoin.
func (p *Pair) Failover() {
	p.Standby.t.Helper()
	p.Standby.Promote()
	p.Primary, p.Standby = p.Standby, p.Primary
}

// Rejoin kills the old primary and makes it the standby of the new one, with the pair's initial replication.
// Data that only the old primary had is lost.
func (p *Pair) Rejoin() {
	p.Standby.t.Helper()
	p.Standby.Kill()
	p.Standby.Follow(p.Primary)
	if p.replication == Synchronous {
		p.Primary.RequireSync(p.Standby)
	}
}
