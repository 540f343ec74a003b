// Package schedule turns times to come into events of queues and of the log: once, at an instant or a civil time, or again and again by a rule.
//
// The civil time and the zone are stored and meant; instants are derived. The zone rules are those of the PostgreSQL server, and
// agent.resolve_local alone applies them, so that all processes agree; package time never decides. A civil time is held as a time.Time whose Location is
// UTC. A rule that comes within days follows real time: each instant at which clocks show one of its civil times is an occurrence. See docs/decisions/009-schedules.md.
//
// # From a rule to an event
//
// A rule is parsed into a series (rule.go), which yields its civil times in order (series.go). An expander resolves them to instants and returns the
// occurrences that come next (expand.go). The firing loop makes events of those that are due (fire.go).
//
// Rules are expanded outside of transactions, within a budget of steps and until the call's deadline. The result of an expansion is stored with one
// statement, which checks that nothing it was derived from has changed; otherwise it is expanded again. The only transaction of several statements
// is that of the firing loop, for schedules that are in time and whose next time is found in a few steps.
//
// # Goroutines and state
//
// Service.Run has four: the firing loop, the subscriber to notifications that wakes it and those who wait for changes of owners (copies.go), the check of zone rules, and the pruning of old occurrences. The loops have a pool
// of their own, so that calls never keep them from firing.
//
//   - Service.wakes holds a token when something may be due; notifications and the zone check put it there, the firing loop takes it.
//   - Service.postponed belongs to the firing loop alone.
//   - Service.mu guards the channel by which those who wait for changes of owners are told.
//   - Service.zones is guarded by zonesMu, which is held during a whole check; counters have a mutex of their own. Nobody holds both.
//
// In the database locks are taken in the order owner, zone_rule, schedules by id (sql/idempotent, schedules).
package schedule
