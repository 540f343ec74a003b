// Package faults tests queued on real servers that are killed, frozen, disconnected, filled up and failed over. The tests of other packages
// use its servers, too:
//
//	server := faults.Start(t, faults.Config{})            // one PostgreSQL, on a TCP port of its own
//	pair := faults.StartPair(t, faults.Synchronous)       // a primary and its standby
//	pooler := faults.StartPooler(t, server, "transaction")
//	wire := faults.StartWire(t, server.URL())             // loses answers of commits
//
//	pair.Primary.Kill()                                   // or Freeze, and later Unfreeze
//	pair.Failover()                                       // the standby is promoted
//	pair.Rejoin()                                         // the old primary comes back as the standby of the new one
//
// The servers run the PostgreSQL programs of this machine and end with the test. Each has the ordinary role
// queued, which owns the database queued and nothing else: [Server.URL] connects as it. Run as root, PostgreSQL runs as the
// user postgres, or nobody.
//
// The scenarios are the tests of this package. QUEUED_FAULTS selects how much of them to run: short (the default), long, or off.
package faults
