package queue

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pg"
)

const (
	// verifyInterval is how long a process may go on taking a queue for declared whose deletion it was not told of. Inserts ask the database in any case.
	verifyInterval = 5 * time.Second
	// undeclaredInterval is the time between two warnings of undeclared queues in use.
	undeclaredInterval = time.Hour
	// undeclaredFor is how long a name is refused that was looked up and is not declared, unless this process is told that it may be.
	undeclaredFor = time.Second
	// lookUpGap is the shortest time between two look-ups, each of which is for all names that are asked for meanwhile.
	lookUpGap = 50 * time.Millisecond
	// lookUpTimeout bounds a look-up, the gap before it included.
	lookUpTimeout = 5 * time.Second
	// maxUndeclared is how many names are remembered that are not declared.
	maxUndeclared = 10_000
	// maxSuggested is how many names of declared queues are searched for the nearest to a wrong one.
	maxSuggested = 10_000
	// maxDistance is how many letters a wrong name may differ by from the one that is suggested.
	maxDistance = 2
)

// reserved is how the names of the service's own queues begin, which need not be declared.
const reserved = "queued."

// declaredQueues is what a process remembers of which queues are declared. A name is looked up when it is first asked for, and verified while it is in use. A nil
// one remembers nothing.
type declaredQueues struct {
	pools   *pools
	lookUps pg.LookUps[string, map[string]bool]

	mu         sync.Mutex
	declared   map[string]bool      // whether it was asked for since the last verification
	undeclared map[string]time.Time // when it was looked up
	learned    map[string]time.Time // when this process learned that it may be declared: an answer to an earlier question may be older
	names      []string             // of declared queues, to suggest one of them
	namesAt    time.Time            // when they were read
	last       time.Time            // when the latest look-up was made
}

func newDeclaredQueues(pools *pools) *declaredQueues {
	d := &declaredQueues{
		pools: pools, declared: make(map[string]bool), undeclared: make(map[string]time.Time),
		learned: make(map[string]time.Time),
	}
	d.lookUps = pg.LookUps[string, map[string]bool]{Find: d.find, Most: 1, Timeout: lookUpTimeout}
	return d
}

// IsDeclaredOnly reports whether Config.DeclaredOnly is set.
func (s *Service) IsDeclaredOnly() bool { return s.declared != nil }

// RequireQueues fails with an *UndeclaredError if one of these queues is not declared and Config.DeclaredOnly is set, and with ErrUnavailable when that cannot be
// looked up. It is for calls that write nothing, and to refuse others early: what is declared by this may be deleted before anything else is done. Another
// process may be up to 5 seconds late to learn of a deletion, and up to a second of a declaration, if notifications are lost.
func (s *Service) RequireQueues(ctx context.Context, queues ...string) error {
	if s.declared == nil {
		return nil
	}
	undeclared, err := s.declared.check(ctx, queues)
	if err != nil {
		return wrap("looking up queues", err)
	}
	if undeclared != "" {
		return &UndeclaredError{Queue: undeclared}
	}
	return nil
}

// warnOfUndeclared logs the first of the undeclared queues that schedules, sources and subscriptions name from before: their events wait there, and claims
// are refused.
func (s *Service) warnOfUndeclared(ctx context.Context) error {
	type inUse struct {
		Queue   string
		Users   int64
		Example string
	}
	rows, _ := s.loops.Query(ctx, `select queue, users, example from agent_service.undeclared_queues()`)
	undeclared, err := pg.Collect[inUse](rows)
	if err != nil {
		return wrap("looking for undeclared queues in use", err)
	}
	for _, u := range undeclared {
		s.cfg.Logger.Warn().Str("queue", u.Queue).Int64("users", u.Users).Str("one_of_them", u.Example).
			Msg("schedules, sources, subscriptions or policies of other queues name a queue that nobody has made: their events wait in it and cannot be claimed until PUT /queues/{name}")
	}
	return nil
}

// requiredQueues returns the queues that have to be declared for events.
func requiredQueues(events []InsertParams) []string {
	queues := make([]string, 0, len(events))
	for i := range events {
		if queue := cmp.Or(events[i].Queue, Default); !events[i].IsAccepted && !slices.Contains(queues[max(0, len(queues)-1):], queue) {
			queues = append(queues, queue)
		}
	}
	return queues
}

// RequireQueue is [pg.RequireQueue] where Config.DeclaredOnly is set.
func (s *Service) RequireQueue(name string) string { return pg.RequireQueue(s.IsDeclaredOnly(), name) }

// noteRefusal remembers that a queue is not declared if that is what the database has answered to a question asked at this time. It returns err.
func (s *Service) noteRefusal(asked time.Time, err error) error {
	if undeclared, ok := errors.AsType[*UndeclaredError](err); ok {
		s.declared.noteUndeclared(undeclared.Queue, asked)
	}
	return err
}

// NearestQueue returns the name of a declared queue that was probably meant by a wrong one, among those that may be named; empty if there is none. It does not ask
// the database: names are a few seconds old.
func (s *Service) NearestQueue(wrong string, mayName func(string) bool) string {
	if s.declared == nil {
		return ""
	}
	s.declared.mu.Lock()
	names := s.declared.names // which is replaced, never changed
	s.declared.mu.Unlock()
	best, least := "", min(maxDistance, len(wrong)-1)+1
	for _, name := range names {
		if d := distance(wrong, name, least-1); 0 < d && d < least && mayName(name) { // 0: it was deleted since
			best, least = name, d
		}
	}
	return best
}

// distance is Levenshtein's, the number of letters to insert, delete or replace to turn a into b, or limit + 1 if it is more than limit.
func distance(a, b string, limit int) int {
	for a != "" && b != "" && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	switch {
	case a == "" || b == "":
		return min(len(a)+len(b), limit+1)
	case limit <= 0:
		return limit + 1
	}
	return 1 + min(distance(a[1:], b, limit-1), distance(a, b[1:], limit-1), distance(a[1:], b[1:], limit-1))
}

// check returns the first of queues that is not declared; empty: all are.
func (d *declaredQueues) check(ctx context.Context, queues []string) (undeclared string, err error) {
	var unknown []string
	d.mu.Lock()
	for _, queue := range queues {
		if _, isDeclared := d.declared[queue]; isDeclared {
			d.declared[queue] = true
		} else if at, isUndeclared := d.undeclared[queue]; isUndeclared && time.Since(at) < undeclaredFor {
			d.mu.Unlock()
			return queue, nil
		} else if !strings.HasPrefix(queue, reserved) {
			unknown = append(unknown, queue)
		}
	}
	d.mu.Unlock()
	if len(unknown) == 0 {
		return "", nil
	}
	found, err := d.lookUps.Get(ctx, unknown...)
	if err != nil {
		return "", err
	}
	for _, queue := range unknown {
		if !found[queue] {
			return queue, nil
		}
	}
	return "", nil
}

// find looks up which of queues are declared, and remembers it.
func (d *declaredQueues) find(ctx context.Context, queues []string) (found map[string]bool, err error) {
	d.mu.Lock()
	wait := time.Until(d.last.Add(lookUpGap))
	d.mu.Unlock()
	if wait > 0 && !pg.Pause(ctx, wait) {
		return nil, ctx.Err()
	}
	defer func() {
		d.mu.Lock()
		d.last = time.Now()
		d.mu.Unlock()
	}()
	asked := time.Now()
	if found, err = d.ask(ctx, queues); err != nil {
		return nil, err
	}
	d.mu.Lock()
	for _, queue := range queues {
		if found[queue] {
			d.declared[queue] = true
			delete(d.undeclared, queue)
		} else {
			d.addUndeclared(queue, asked)
		}
	}
	needsNames := len(found) < len(queues) && time.Since(d.namesAt) > verifyInterval
	d.mu.Unlock()
	if needsNames {
		err = d.readNames(ctx)
	}
	return found, err
}

func collectNames(rows pgx.Rows) ([]string, error) { return pgx.CollectRows(rows, pgx.RowTo[string]) }

// ask asks the database which of queues are declared.
func (d *declaredQueues) ask(ctx context.Context, queues []string) (map[string]bool, error) {
	names, err := shortCall(ctx, d.pools, collectNames, `select agent_service.declared_queues($1)`, queues)
	found := make(map[string]bool, len(names))
	for _, name := range names {
		found[name] = true
	}
	return found, err
}

// readNames reads the names that may be suggested.
func (d *declaredQueues) readNames(ctx context.Context) error {
	names, err := shortCall(ctx, d.pools, collectNames, `select agent_service.declared_queues(_limit => $1)`, maxSuggested)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.names, d.namesAt = names, time.Now()
	return nil
}

// verify asks the database about the queues that were asked for since the last time, and forgets the others.
func (d *declaredQueues) verify(ctx context.Context) error {
	var used []string
	d.mu.Lock()
	for queue, isUsed := range d.declared {
		if isUsed {
			used = append(used, queue)
			d.declared[queue] = false
		} else {
			delete(d.declared, queue)
		}
	}
	d.mu.Unlock()
	if len(used) == 0 {
		return nil
	}
	found, err := d.ask(ctx, used)
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, queue := range used {
		switch {
		case err != nil: // they are verified the next time
			d.declared[queue] = true
		case !found[queue]:
			delete(d.declared, queue)
		}
	}
	return wrap("looking up queues", err)
}

// addUndeclared remembers that a queue is not declared, as the database said when it was asked at this time. The caller holds mu.
func (d *declaredQueues) addUndeclared(queue string, asked time.Time) {
	if d.learned[queue].After(asked) {
		return
	}
	delete(d.declared, queue)
	if len(d.undeclared) >= maxUndeclared {
		clear(d.undeclared)
	}
	d.undeclared[queue] = time.Now()
}

// noteUndeclared remembers what a write that began at this time was told: the queue is not declared.
func (d *declaredQueues) noteUndeclared(queue string, asked time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.addUndeclared(queue, asked)
}

// learn remembers that a queue may be declared from now on. The caller holds mu.
func (d *declaredQueues) learn(queue string) {
	if len(d.learned) >= maxUndeclared {
		clear(d.learned)
	}
	d.learned[queue] = time.Now()
	delete(d.undeclared, queue)
}

// add remembers that a queue was declared by this process.
func (d *declaredQueues) add(queue string) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.declared[queue] = true
	d.learn(queue)
	d.namesAt = time.Time{}
}

// forget forgets what is known of a queue that was deleted.
func (d *declaredQueues) forget(queue string) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.declared, queue)
	delete(d.undeclared, queue)
	d.namesAt = time.Time{}
}

// forgetUndeclared forgets that a queue is not declared, as a notification about it may come from its declaration.
func (d *declaredQueues) forgetUndeclared(queue string) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.learn(queue)
}
