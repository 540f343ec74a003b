package pg

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/time/rate"
)

const (
	// DefaultReplicaPoll is the time between two looks whether replicas have changed, while notifications may not arrive. With a quarter more, see Jittered, and
	// the time that a statement takes it is less than the 5 s within which a revoked key is refused everywhere.
	DefaultReplicaPoll = 3 * time.Second
	// quietPolls is how many times rarer replicas are looked at while notifications arrive. A connection that they no longer arrive on is noticed within
	// pingAfter and pingTimeout, which is 4 s together, and has all of them looked at.
	quietPolls = 10
	// rereadInterval is the time after which a replica is read though its version is the same: tables that were restored without their triggers have no other one.
	rereadInterval = time.Minute

	// replicaRetry is the longest pause after a look that failed: what it was to see may be due.
	replicaRetry = time.Second

	lookUpsPerSec = 50 // of keys that a replica does not have; those that it has are not affected
	lookUpsBurst  = 100
)

// ErrLookUps is the error of a look-up that was not made because there were too many. It is an ErrUnavailable.
var ErrLookUps = errors.Join(errors.New("too many look-ups"), ErrUnavailable)

// A Replica is a copy in memory of what changes rarely in the database, and is needed so often that no call asks the database for it. It is read anew when its version is
// another one, lower or higher, when the database is another one or was started again, and otherwise once a minute. A notification says that the version has changed, and without one
// that is seen by a look at the versions of all replicas of the process, which is one statement.
//
// A snapshot is immutable and replaced as a whole. It never gives way to an older one: the version is read before the rows. The zero value is not usable: set
// the fields, and call Renew once before Load.
type Replica[S any] struct {
	Database *Database
	Pool     *Pool
	Names    []string      // of the versions, see agent_service.replica_versions, and after "agent_" of the channels
	Doing    string        // for errors and the log: "reading the sources"
	Timeout  time.Duration // of reading it
	Poll     time.Duration // between two looks while notifications may not arrive; zero: DefaultReplicaPoll
	// Read returns a new snapshot, for which it may use the parts of the one before that are the same. That one is nil at first.
	Read func(ctx context.Context, before *S) (*S, error)
	// Swapped is called when a snapshot has taken the place of another one, nil at first. Nil: nothing is done.
	Swapped func(before, after *S)
	// Differs reports whether the database has one of these keys, and the snapshot has it not, or an older one. Only look-ups need it.
	Differs func(ctx context.Context, current *S, keys []string) (bool, error)
	Limiter *rate.Limiter // of look-ups; nil: 50 a second, and 100 at once

	snapshot atomic.Pointer[S]
	changed  Signal
	lookUps  LookUps[string, struct{}]
	prepared sync.Once
	renewing chan struct{} // full while it is looked at and read, so that an older snapshot never replaces a newer one

	mu          sync.Mutex // guards the fields below
	woken       int        // how many times it was woken
	seen        int        // how many of these the latest look has begun after
	doubted     int        // how many times it was doubted
	settled     int        // how many of these the latest reading has begun after
	versions    []int64    // in the order of Names
	place       int64      // the database that it was read from, see Database.Place
	readAt      time.Time  // when the latest reading began
	confirmedAt time.Time  // when the latest look began that has seen this version
}

// A watcher is a running replica, as others see it.
type watcher interface {
	// offer tells what a look has seen that began at a time.
	offer(versions map[string]int64, place int64, began time.Time)
}

// prepare sets what the exported fields do not.
func (r *Replica[S]) prepare() {
	r.prepared.Do(func() {
		r.changed, r.renewing = NewSignal(), make(chan struct{}, 1)
		if r.Limiter == nil {
			r.Limiter = rate.NewLimiter(lookUpsPerSec, lookUpsBurst)
		}
		r.lookUps = LookUps[string, struct{}]{Most: 2, Timeout: r.Timeout, Find: func(ctx context.Context, keys []string) (struct{}, error) {
			return struct{}{}, r.find(ctx, keys)
		}}
		r.Poll = cmp.Or(r.Poll, DefaultReplicaPoll)
	})
}

// Load returns the snapshot: what the database had at one time. It never blocks.
func (r *Replica[S]) Load() *S { return r.snapshot.Load() }

// Renew looks whether the replica has changed, and reads it then. When it has returned without an error the snapshot is at least as new as the call, as far as its
// version says.
func (r *Replica[S]) Renew(ctx context.Context) error { return r.renew(ctx, false) }

// RenewNow has a change that this process has made hold here before its caller is answered. When the database cannot be asked now, Run goes on trying.
func (r *Replica[S]) RenewNow(ctx context.Context) {
	if err := r.Renew(ctx); err != nil {
		r.Wake()
	}
}

// Wake has Run look whether the replica has changed. It never blocks.
func (r *Replica[S]) Wake() {
	r.prepare()
	r.mu.Lock()
	r.woken++
	r.mu.Unlock()
	r.changed.Send()
}

// Doubt has the next look read the replica although its version may be the same, and Run look now: the caller has seen a row that differs. It never blocks.
func (r *Replica[S]) Doubt() {
	r.mu.Lock()
	r.doubted++
	r.mu.Unlock()
	r.Wake()
}

// renew reads the replica, also when its version is the same if mustRead.
func (r *Replica[S]) renew(ctx context.Context, mustRead bool) error {
	r.prepare()
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	select {
	case r.renewing <- struct{}{}:
	case <-ctx.Done():
		return States{}.Wrap(r.Doing, ctx.Err())
	}
	defer func() { <-r.renewing }()
	r.mu.Lock()
	woken, doubted := r.woken, r.doubted
	r.mu.Unlock()
	began, place := time.Now(), r.Database.Place()
	versions, err := r.look(ctx)
	if err != nil {
		return States{}.Wrap(r.Doing, err)
	}
	r.Database.replicas.offer(r, versions, place, began)
	r.mu.Lock()
	isSame := r.hasLocked(versions, place) && r.settled == doubted && !r.readAt.IsZero() && began.Sub(r.readAt) < rereadInterval
	if isSame {
		r.confirmedAt, r.seen = began, woken
	}
	r.mu.Unlock()
	if isSame && !mustRead {
		return nil
	}
	// The rows are at least as new as the version. What changes now makes it another one.
	before := r.Load()
	after, err := r.Read(ctx, before)
	if err != nil {
		return States{}.Wrap(r.Doing, err)
	}
	r.snapshot.Store(after)
	Worked(ctx)
	r.mu.Lock()
	r.versions = r.versions[:0]
	for _, name := range r.Names {
		r.versions = append(r.versions, versions[name])
	}
	r.place, r.readAt, r.confirmedAt, r.seen, r.settled = place, began, began, woken, doubted
	r.mu.Unlock()
	if r.Swapped != nil {
		r.Swapped(before, after)
	}
	return nil
}

// hasLocked reports whether the replica has these versions, from this place. The caller holds mu.
func (r *Replica[S]) hasLocked(versions map[string]int64, place int64) bool {
	for i, version := range r.versions {
		if version != versions[r.Names[i]] {
			return false
		}
	}
	return r.place == place && len(r.versions) > 0
}

// look returns the versions of all replicas, and sets the clock of the database.
func (r *Replica[S]) look(ctx context.Context) (map[string]int64, error) {
	type row struct {
		Name    string
		Version int64
		At      time.Time
	}
	asked := time.Now()
	rows, _ := r.Pool.Query(ctx, `select name, version, at from agent_service.replica_versions()`)
	found, err := Collect[row](rows)
	if err != nil {
		return nil, err
	}
	answered := time.Now()
	versions := make(map[string]int64, len(found))
	for _, v := range found {
		versions[v.Name] = v.Version
		r.Database.clock.set(v.At, asked, answered)
	}
	return versions, nil
}

// offer takes what the look of another replica has seen.
func (r *Replica[S]) offer(versions map[string]int64, place int64, began time.Time) {
	r.mu.Lock()
	isSame := r.hasLocked(versions, place)
	if isSame && r.confirmedAt.Before(began) {
		r.confirmedAt = began
	}
	isOlder := began.Before(r.confirmedAt) // than what is known here
	r.mu.Unlock()
	if !isSame && !isOlder {
		r.Wake()
	}
}

// Run keeps the replica up to date and runs other loops until ctx ends. Without it the replica is that of the latest Renew.
func (r *Replica[S]) Run(ctx context.Context, log zerolog.Logger, loops ...Loop) {
	r.prepare()
	r.Database.replicas.join(r)
	defer r.Database.replicas.leave(r)
	subscribers := make([]Subscriber, len(r.Names))
	for i, name := range r.Names {
		subscribers[i] = Subscriber{
			Channel: "agent_" + name, Started: r.Wake, Received: func(string) { r.Wake() },
			Failed: func(error) { r.Wake() }, // what was changed meanwhile was not told
		}
	}
	r.Database.RunLoops(ctx, log, subscribers, append([]Loop{r.loop()}, loops...)...)
}

// loop returns the loop that reads the replica when that is due.
func (r *Replica[S]) loop() Loop {
	return Loop{Doing: r.Doing, Pass: r.pass, Pause: r.Poll, Retry: min(r.Poll, replicaRetry), Next: r.next, Wakes: r.changed.Received}
}

// pass looks unless another replica has done so lately, and nothing has been told since.
func (r *Replica[S]) pass(ctx context.Context) error {
	r.mu.Lock()
	isDue := r.woken != r.seen || time.Since(r.confirmedAt) >= r.interval()*3/4 || time.Since(r.readAt) >= rereadInterval
	r.mu.Unlock()
	if !isDue {
		Worked(ctx)
		return nil
	}
	return r.Renew(ctx)
}

// next returns the time until the next look.
func (r *Replica[S]) next(context.Context) time.Duration {
	r.mu.Lock()
	confirmedAt, readAt := r.confirmedAt, r.readAt
	r.mu.Unlock()
	return max(0, min(Jittered(r.interval())-time.Since(confirmedAt), rereadInterval-time.Since(readAt)))
}

// interval returns the time between two looks.
func (r *Replica[S]) interval() time.Duration {
	if r.Database.MissesNothing() {
		return quietPolls * r.Poll
	}
	return r.Poll
}

// LookUp has the database asked for a key that the snapshot does not have, together with others. When it has returned without an error the snapshot has the key, if
// there is one. It fails as the look-up does, such as with ErrUnavailable, and with ErrLookUps when there were too many.
func (r *Replica[S]) LookUp(ctx context.Context, key string) error {
	r.prepare()
	if !r.Limiter.Allow() {
		return ErrLookUps
	}
	_, err := r.lookUps.Get(ctx, key)
	if err != nil && ctx.Err() != nil {
		return States{}.Wrap(r.Doing, ctx.Err())
	}
	return err
}

// find reads the replica if the database has one of these keys otherwise.
func (r *Replica[S]) find(ctx context.Context, keys []string) error {
	differs, err := r.Differs(ctx, r.Load(), keys)
	if err != nil {
		return States{}.Wrap(r.Doing, err)
	}
	if differs {
		return r.renew(ctx, true)
	}
	return nil
}

// replicas are those of a Database that run.
type replicas struct {
	mu      sync.Mutex
	running map[watcher]struct{}
}

func (a *replicas) join(w watcher) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.running == nil {
		a.running = make(map[watcher]struct{})
	}
	a.running[w] = struct{}{}
}

func (a *replicas) leave(w watcher) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.running, w)
}

// offer tells all but one of them what that one has seen.
func (a *replicas) offer(by watcher, versions map[string]int64, place int64, began time.Time) {
	a.mu.Lock()
	others := maps.Clone(a.running)
	a.mu.Unlock()
	delete(others, by)
	for other := range others {
		other.offer(versions, place, began)
	}
}
