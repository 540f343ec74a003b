package topic_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/queued/queued/internal/topic"
)

// wants returns a filter of a subscription.
func wants(t *testing.T, name string, topics []string, pattern string) topic.SubscriptionFilter {
	t.Helper()
	return topic.SubscriptionFilter{Name: name, Topics: topics, Match: json.RawMessage(pattern), Filter: filter(t, topics, pattern)}
}

// subscribe creates or replaces the subscription s from the beginning of the log on.
func (env environment) subscribe(t *testing.T, filters ...topic.SubscriptionFilter) {
	t.Helper()
	env.put(t, topic.PutSubscriptionParams{Name: "s", Filters: filters})
}

func (env environment) put(t *testing.T, p topic.PutSubscriptionParams) bool {
	t.Helper()
	p.MaxWaiting = max(p.MaxWaiting, 1)
	isNew, err := env.PutSubscription(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	return isNew
}

// everything wants all events.
func everything(t *testing.T) topic.SubscriptionFilter {
	t.Helper()
	return wants(t, "all", nil, "")
}

func (env environment) next(t *testing.T, p topic.SubscribedParams) topic.SubscribedPage {
	t.Helper()
	page, err := env.ReadSubscription(t.Context(), "s", p)
	if err != nil {
		t.Fatal(err)
	}
	return page
}

func (env environment) commit(t *testing.T, cursor string) int64 {
	t.Helper()
	position, err := env.Commit(t.Context(), "s", cursor)
	if err != nil {
		t.Fatal(err)
	}
	return position
}

// seek makes the subscription s go on after a position of the log.
func (env environment) seek(ctx context.Context, to int64) error {
	position, gap, err := env.Seek(ctx, "s", to)
	if err == nil && (position != to || gap != nil) {
		return fmt.Errorf("sought %d and got %d, gap %v", to, position, gap)
	}
	return err
}

func (env environment) wantLost(t *testing.T, doing, cursor string) {
	t.Helper()
	if _, err := env.Commit(t.Context(), "s", cursor); !errors.Is(err, topic.ErrCursorLost) {
		t.Errorf("%s: %v, want ErrCursorLost", doing, err)
	}
}

func (env environment) get(t *testing.T) topic.Subscription {
	t.Helper()
	sub, err := env.Subscription(t.Context(), "s")
	if err != nil {
		t.Fatal(err)
	}
	return sub
}

// matched are the positions of events.
func matched(events []topic.MatchedEvent) []int64 {
	all := make([]int64, len(events))
	for i, e := range events {
		all[i] = e.Position
	}
	return all
}

func TestReadsGoOnFromWhatWasCommitted(t *testing.T) {
	t.Parallel()
	env := setup(t)
	env.subscribe(t, everything(t))
	all := env.publish(t, slices.Repeat([]string{"a"}, 10)...)
	first := env.next(t, topic.SubscribedParams{Limit: 4})
	again := env.next(t, topic.SubscribedParams{Limit: 4})
	if !slices.Equal(matched(first.Events), all[:4]) || !slices.Equal(matched(again.Events), all[:4]) || first.Lag.Events != 6 {
		t.Errorf("read %d, then %d, lag %d", matched(first.Events), matched(again.Events), first.Lag.Events)
	}
	if got := env.commit(t, first.Cursor); got != all[3] {
		t.Errorf("committed %d, want %d", got, all[3])
	}
	if got := env.commit(t, first.Cursor); got != all[3] {
		t.Errorf("committed again: %d, want %d", got, all[3])
	}
	env.wantLost(t, "the same page that another one has read", again.Cursor)
	rest := env.next(t, topic.SubscribedParams{})
	if !slices.Equal(matched(rest.Events), all[4:]) || rest.Lag != (topic.Lag{}) {
		t.Errorf("the rest is %d, lag %v", matched(rest.Events), rest.Lag)
	}
	env.commit(t, rest.Cursor)
	if page := env.next(t, topic.SubscribedParams{Wait: time.Millisecond}); len(page.Events) != 0 || page.Gap != nil || page.Cursor == "" {
		t.Errorf("at the end: %+v", page)
	}
	env.wantLost(t, "an earlier cursor", first.Cursor)
	if sub := env.get(t); sub.Position != all[9] || sub.LagEvents != 0 || sub.LagSeconds != 0 || sub.Gaps != 0 {
		t.Errorf("the subscription is %+v", sub)
	}
}

func TestReadingAheadCommitsInOrder(t *testing.T) {
	t.Parallel()
	env := setup(t)
	env.subscribe(t, everything(t))
	all := env.publish(t, slices.Repeat([]string{"a"}, 6)...)
	var cursors []string
	var got []int64
	after := ""
	for range 3 {
		page := env.next(t, topic.SubscribedParams{After: after, Limit: 2})
		got, after = append(got, matched(page.Events)...), page.Cursor
		cursors = append(cursors, page.Cursor)
	}
	if !slices.Equal(got, all) {
		t.Errorf("read %d, want %d", got, all)
	}
	end := env.next(t, topic.SubscribedParams{After: after})
	if len(end.Events) != 0 || end.Cursor != after {
		t.Errorf("at the end: %+v", end)
	}
	env.wantLost(t, "the second before the first", cursors[1])
	for i, cursor := range cursors {
		if position := env.commit(t, cursor); position != all[2*i+1] {
			t.Errorf("commit %d: %d, want %d", i, position, all[2*i+1])
		}
	}
	if _, err := env.ReadSubscription(t.Context(), "s", topic.SubscribedParams{After: cursors[0]}); !errors.Is(err, topic.ErrCursorLost) {
		t.Errorf("reading after what is long committed: %v", err)
	}
}

func TestFiltersOfASubscriptionNameWhatTheyMatch(t *testing.T) {
	t.Parallel()
	env := setup(t)
	env.subscribe(t, wants(t, "orders", []string{"order.*"}, ""), wants(t, "even", nil, `{"n":[0,2]}`), wants(t, "same", []string{"order.*"}, ""))
	env.publish(t, "order.placed", "user.added", "user.gone", "order.paid")
	env.exec(t, `select agent.publish('x', '{}', _subscription => 's'), agent.publish('order.placed', '{}', _subscription => 'other')`)
	page := env.next(t, topic.SubscribedParams{})
	var got []string
	for _, e := range page.Events {
		got = append(got, e.Topic+" "+strings.Join(e.Matched, ","))
	}
	want := []string{"order.placed even,orders,same", "user.gone even", "order.paid orders,same", "x "}
	if !slices.Equal(got, want) {
		t.Errorf("read %q, want %q", got, want)
	}
}

func TestPositionMovesOverWhatNobodyWants(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.subscribe(t, wants(t, "b", []string{"b"}, ""))
	all := env.publish(t, slices.Repeat([]string{"a"}, 20)...)
	if page := env.next(t, topic.SubscribedParams{}); len(page.Events) != 0 {
		t.Errorf("read %+v", page.Events)
	}
	if sub := env.get(t); sub.Position != all[19] || sub.LagEvents != 0 {
		t.Errorf("the subscription is %+v", sub)
	}
}

func TestWaitingReadGetsWhatIsPublished(t *testing.T) {
	t.Parallel()
	env := setup(t)
	other := environmentOn(t, env.url)
	other.run(t)
	env.subscribe(t, wants(t, "b", []string{"b"}, ""))
	got := make(chan topic.SubscribedPage, 1)
	go func() {
		page, err := env.ReadSubscription(t.Context(), "s", topic.SubscribedParams{Wait: busyTimeout})
		if err != nil {
			t.Error(err)
		}
		got <- page
	}()
	env.publish(t, "a")
	want := other.publish(t, "a", "b")[1:]
	page := <-got
	if !slices.Equal(matched(page.Events), want) {
		t.Errorf("read %d, want %d", matched(page.Events), want)
	}
	env.commit(t, page.Cursor)
	go func() {
		page, err := env.ReadSubscription(t.Context(), "s", topic.SubscribedParams{Wait: busyTimeout})
		if err != nil {
			t.Error(err)
		}
		got <- page
	}()
	env.exec(t, `select agent.publish('x', '{}', _subscription => 's')`)
	if page := <-got; len(page.Events) != 1 || page.Events[0].Topic != "x" {
		t.Errorf("read %+v, want what is for it alone", page.Events)
	}
}

// A reader in one process must not pass over what a filter wants that another process has added before the event was published.
func TestFilterAddedWhileSomebodyWaitsMissesNothing(t *testing.T) {
	t.Parallel()
	env := setup(t)
	other := environmentOn(t, env.url)
	other.run(t)
	env.subscribe(t, wants(t, "none", []string{"none"}, ""))
	for i := range 10 {
		got := make(chan topic.SubscribedPage, 1)
		go func() {
			page, err := env.ReadSubscription(t.Context(), "s", topic.SubscribedParams{Wait: busyTimeout})
			if err != nil {
				t.Error(err)
			}
			got <- page
		}()
		name := fmt.Sprintf("b%d", i)
		if err := other.PutFilter(t.Context(), "s", wants(t, name, []string{name}, "")); err != nil {
			t.Fatal(err)
		}
		want := other.publish(t, name)
		page := <-got
		if !slices.Equal(matched(page.Events), want) || !slices.Equal(page.Events[0].Matched, []string{name}) {
			t.Errorf("round %d: read %+v, want %d", i, page.Events, want)
		}
		env.commit(t, page.Cursor)
	}
}

// The page of a read was matched with filters that have changed before the read ends.
func TestPageOfFormerFiltersIsReadAgain(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.subscribe(t, wants(t, "none", []string{"none"}, ""))
	env.exec(t, `create temporary table began as select * from agent_service.begin_read('s')`)
	if err := env.PutFilter(t.Context(), "s", wants(t, "a", []string{"a"}, "")); err != nil {
		t.Fatal(err)
	}
	want := env.publish(t, "a")
	status := value[string](t, env, `select e.status from began b, agent_service.end_read(b.id, b.filters_version, b.token, b.epoch, false, false, 1, $1, $1, null, true) e`, want[0])
	if status != "changed" {
		t.Errorf("the read ended with %q, want changed", status)
	}
	if page := env.next(t, topic.SubscribedParams{}); !slices.Equal(matched(page.Events), want) {
		t.Errorf("read %d, want %d", matched(page.Events), want)
	}
}

func TestLeaseKeepsOthersAwayUntilItEnds(t *testing.T) {
	t.Parallel()
	env := setup(t)
	other := environmentOn(t, env.url)
	env.subscribe(t, everything(t))
	all := env.publish(t, slices.Repeat([]string{"a"}, 6)...)
	before := env.next(t, topic.SubscribedParams{})
	mine := env.next(t, topic.SubscribedParams{Limit: 2, Lease: time.Hour})
	if mine.LeasedUntil == nil || !slices.Equal(matched(mine.Events), all[:2]) {
		t.Fatalf("the lease is %+v", mine)
	}
	for _, p := range []topic.SubscribedParams{{}, {Lease: time.Second}, {Wait: time.Millisecond}} {
		if page := other.next(t, p); len(page.Events) != 0 || page.HeldUntil == nil || page.Cursor != "" || page.Lag.Events != 6 {
			t.Errorf("another one got %+v", page)
		}
	}
	env.wantLost(t, "what was read before the lease", before.Cursor)
	ahead := env.next(t, topic.SubscribedParams{Limit: 2, After: mine.Cursor})
	env.commit(t, mine.Cursor)
	if page := other.next(t, topic.SubscribedParams{}); page.HeldUntil == nil {
		t.Errorf("read ahead, and the lease ended with the first commit: %+v", page)
	}
	env.commit(t, ahead.Cursor)
	page := other.next(t, topic.SubscribedParams{})
	if !slices.Equal(matched(page.Events), all[4:]) {
		t.Errorf("after the lease another one gets %+v", page)
	}

	late := env.next(t, topic.SubscribedParams{Lease: time.Hour})
	env.exec(t, `update agent.subscription_position set leased_until = now()`)
	env.wantLost(t, "a late commit", late.Cursor)
	if _, err := env.ReadSubscription(t.Context(), "s", topic.SubscribedParams{After: late.Cursor}); !errors.Is(err, topic.ErrCursorLost) {
		t.Errorf("reading ahead under a lease that has ended: %v", err)
	}
	other.commit(t, other.next(t, topic.SubscribedParams{}).Cursor)
	env.wantLost(t, "a commit that is later still", late.Cursor)
}

func TestWhoWaitsForALeaseReadsWhenItEnds(t *testing.T) {
	t.Parallel()
	env := setup(t)
	env.subscribe(t, everything(t))
	env.publish(t, "a", "b")
	mine := env.next(t, topic.SubscribedParams{Limit: 1, Lease: time.Hour})
	got := make(chan topic.SubscribedPage, 1)
	go func() {
		page, err := env.ReadSubscription(t.Context(), "s", topic.SubscribedParams{Wait: busyTimeout, Lease: time.Hour})
		if err != nil {
			t.Error(err)
		}
		got <- page
	}()
	env.commit(t, mine.Cursor)
	if page := <-got; len(page.Events) != 1 || page.Events[0].Topic != "b" || page.LeasedUntil == nil {
		t.Errorf("read %+v", page)
	}
}

func TestSeekLosesCursorsAndReadsAgain(t *testing.T) {
	t.Parallel()
	env := setup(t)
	env.subscribe(t, everything(t))
	all := env.publish(t, slices.Repeat([]string{"a"}, 6)...)
	page := env.next(t, topic.SubscribedParams{Limit: 4, Lease: time.Hour})
	if err := env.seek(t.Context(), all[1]); err != nil {
		t.Fatal(err)
	}
	env.wantLost(t, "read before the seek", page.Cursor)
	page = env.next(t, topic.SubscribedParams{})
	if !slices.Equal(matched(page.Events), all[2:]) {
		t.Errorf("after the seek: %d, want %d", matched(page.Events), all[2:])
	}
	env.commit(t, page.Cursor)
	if err := env.seek(t.Context(), page.Events[3].Position); err != nil { // to where it is
		t.Fatal(err)
	}
	env.wantLost(t, "committed before the seek", page.Cursor)
	var invalid *topic.InvalidError
	for _, position := range []int64{-1, 1 << 60} {
		if err := env.seek(t.Context(), position); !errors.As(err, &invalid) {
			t.Errorf("seeking to %d: %v", position, err)
		}
	}
}

func TestSubscriptionMadeAnewRefusesOldCursors(t *testing.T) {
	t.Parallel()
	env := setup(t)
	env.subscribe(t, everything(t))
	all := env.publish(t, "a", "b")
	page := env.next(t, topic.SubscribedParams{})
	if err := env.DeleteSubscription(t.Context(), "s", nil); err != nil {
		t.Fatal(err)
	}
	for doing, err := range map[string]error{
		"commit": second(env.Commit(t.Context(), "s", page.Cursor)), "seek": env.seek(t.Context(), 0), "read": second(env.ReadSubscription(t.Context(), "s", topic.SubscribedParams{})),
		"get": second(env.Subscription(t.Context(), "s")), "delete": env.DeleteSubscription(t.Context(), "s", nil), "pause": env.PauseSubscription(t.Context(), "s"),
		"put a filter": env.PutFilter(t.Context(), "s", everything(t)), "delete a filter": env.DeleteFilter(t.Context(), "s", "all"),
	} {
		if !errors.Is(err, topic.ErrSubscriptionNotFound) {
			t.Errorf("%s: %v, want ErrSubscriptionNotFound", doing, err)
		}
	}
	env.subscribe(t, everything(t))
	env.wantLost(t, "of the subscription before", page.Cursor)
	if _, err := env.ReadSubscription(t.Context(), "s", topic.SubscribedParams{After: page.Cursor}); !errors.Is(err, topic.ErrCursorLost) {
		t.Errorf("reading after it: %v", err)
	}
	if again := env.next(t, topic.SubscribedParams{}); !slices.Equal(matched(again.Events), all) {
		t.Errorf("it begins with %d", matched(again.Events))
	}
}

func second[A any](_ A, err error) error { return err }

func TestWhatIsNoCursorOfTheSubscriptionIsRefused(t *testing.T) {
	t.Parallel()
	env := setup(t)
	env.subscribe(t, everything(t))
	env.put(t, topic.PutSubscriptionParams{Name: "other"})
	env.publish(t, "a")
	good := env.next(t, topic.SubscribedParams{}).Cursor
	elsewhere, err := env.ReadSubscription(t.Context(), "other", topic.SubscribedParams{})
	if err != nil {
		t.Fatal(err)
	}
	bad := []string{"", "x", "AAAA", good + "A", good[:len(good)-1], elsewhere.Cursor, strings.Repeat("A", 1000), "\x00", "é"}
	for i := range good {
		changed := []byte(good)
		changed[i] ^= 1
		bad = append(bad, string(changed))
	}
	var invalid *topic.InvalidError
	for _, text := range bad {
		if _, err := env.Commit(t.Context(), "s", text); !errors.As(err, &invalid) || invalid.Field != "cursor" {
			t.Errorf("committing %q: %v", text, err)
		}
		if text == "" {
			continue
		}
		if _, err := env.ReadSubscription(t.Context(), "s", topic.SubscribedParams{After: text}); !errors.As(err, &invalid) || invalid.Field != "after" {
			t.Errorf("reading after %q: %v", text, err)
		}
	}
	env.commit(t, good)
}

func TestPausedSubscriptionHandsOutNothing(t *testing.T) {
	t.Parallel()
	env := setup(t)
	env.subscribe(t, everything(t))
	all := env.publish(t, "a", "b")
	page := env.next(t, topic.SubscribedParams{Limit: 1})
	for range 2 {
		if err := env.PauseSubscription(t.Context(), "s"); err != nil {
			t.Fatal(err)
		}
	}
	env.commit(t, page.Cursor)
	if paused := env.next(t, topic.SubscribedParams{Wait: time.Millisecond}); !paused.IsPaused || len(paused.Events) != 0 || paused.Lag.Events != 1 {
		t.Errorf("paused: %+v", paused)
	}
	got := make(chan topic.SubscribedPage, 1)
	go func() {
		page, err := env.ReadSubscription(t.Context(), "s", topic.SubscribedParams{Wait: busyTimeout})
		if err != nil {
			t.Error(err)
		}
		got <- page
	}()
	if err := env.ResumeSubscription(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	if page := <-got; !slices.Equal(matched(page.Events), all[1:]) {
		t.Errorf("resumed: %+v", page)
	}
	if sub := env.get(t); sub.Version != 3 {
		t.Errorf("it has version %d, want 3: the second pause changed nothing", sub.Version)
	}
}

func TestDurableSubscriptionHoldsSegmentsForATime(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.subscribe(t, everything(t))
	env.put(t, topic.PutSubscriptionParams{Name: "short", ExpiresAfter: new(time.Hour)})
	first := env.publish(t, "a", "a", "a")
	env.closeSegment(t)
	second := env.publish(t, "b", "b")
	env.closeSegment(t)
	third := env.publish(t, "c")
	drop := func(closed string, want int) {
		t.Helper()
		env.exec(t, `update agent.log_segment set closed_at = now() - $1::interval where state = 'closed'`, closed)
		n := 0
		for env.upkeepStep(t, `select agent_service.drop_log_segment() is not null`) {
			n++
		}
		if n != want {
			t.Fatalf("%d segments were dropped %s after they were closed, want %d", n, closed, want)
		}
	}
	drop("100 hours", 0)
	env.commit(t, env.next(t, topic.SubscribedParams{Limit: 2}).Cursor)
	drop("100 hours", 0)
	env.commit(t, env.next(t, topic.SubscribedParams{Limit: 2}).Cursor) // the last of the first segment, and one of the second
	drop("100 hours", 1)
	if sub := env.get(t); sub.Gaps != 0 || sub.LagEvents != 2 {
		t.Errorf("nothing is missing yet: %+v", sub)
	}
	drop("169 hours", 1)
	if sub := env.get(t); sub.Gaps != 1 || sub.LagEvents != 1 {
		t.Errorf("with a gap that nobody knows of: %+v", sub)
	}
	want := topic.Gap{After: second[0], Until: second[1], Reason: topic.GapRetention}
	page := env.next(t, topic.SubscribedParams{})
	if page.Gap == nil || *page.Gap != want || !slices.Equal(matched(page.Events), third) {
		t.Errorf("read %+v, want the gap %v and %d", page, want, third)
	}
	if ahead := env.next(t, topic.SubscribedParams{After: page.Cursor}); ahead.Gap != nil {
		t.Errorf("reading ahead, the gap is told again: %v", ahead.Gap)
	}
	env.commit(t, page.Cursor)
	if page := env.next(t, topic.SubscribedParams{}); page.Gap != nil {
		t.Errorf("the gap is told again: %v", page.Gap)
	}
	if sub := env.get(t); sub.Gaps != 1 {
		t.Errorf("%d gaps, want 1", sub.Gaps)
	}
	if err := env.seek(t.Context(), first[0]); err != nil {
		t.Fatal(err)
	}
	if err := env.seek(t.Context(), third[0]); err != nil {
		t.Fatal(err)
	}
	if sub := env.get(t); sub.Gaps != 2 {
		t.Errorf("%d gaps after a seek out of one that nobody was told of, want 2", sub.Gaps)
	}
}

func TestWhatExpiresGoesUnlessItIsUsed(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	hour := new(time.Hour)
	named := everything(t)
	short := wants(t, "short", []string{"a"}, "")
	short.ExpiresAfter = hour
	put := func() {
		env.put(t, topic.PutSubscriptionParams{Name: "s", Filters: []topic.SubscriptionFilter{named, short}, ExpiresAfter: hour})
	}
	put()
	env.publish(t, "a")
	age := func() {
		env.exec(t, `update agent.subscription set expires_at = now() + interval '1 minute'`)
	}
	isRenewed := func(doing string) {
		t.Helper()
		if left := time.Until(*env.get(t).ExpiresAt); left < 50*time.Minute {
			t.Errorf("%s: it expires in %s", doing, left)
		}
	}
	age()
	page := env.next(t, topic.SubscribedParams{})
	isRenewed("read")
	age()
	env.commit(t, page.Cursor)
	isRenewed("committed")
	age()
	version := env.get(t).Version
	put()
	isRenewed("put again")
	if env.get(t).Version != version {
		t.Error("renewing has changed the version")
	}
	prune := func(want int) {
		t.Helper()
		if n := value[int](t, env, `select agent_service.prune_subscriptions()`); n != want {
			t.Errorf("%d were pruned, want %d", n, want)
		}
	}
	prune(0)
	env.exec(t, `update agent.subscription_filter set expires_at = now() where expires_at is not null`)
	prune(1)
	if sub := env.get(t); len(sub.Filters) != 1 || sub.Version != version+1 {
		t.Errorf("after the filter has expired: %+v", sub)
	}
	env.publish(t, "a")
	if page := env.next(t, topic.SubscribedParams{}); len(page.Events) != 1 || !slices.Equal(page.Events[0].Matched, []string{"all"}) {
		t.Errorf("read %+v", page.Events)
	}
	env.exec(t, `update agent.subscription set expires_at = now()`)
	prune(1)
	if _, err := env.Subscription(t.Context(), "s"); !errors.Is(err, topic.ErrSubscriptionNotFound) {
		t.Errorf("it is there: %v", err)
	}
	if n := value[int](t, env, `select (select count(*) from agent.subscription_filter) + (select count(*) from agent.subscription_position where reader <> 0)`); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}

func TestPutChangesWhatIsToBeChangedOnly(t *testing.T) {
	t.Parallel()
	env := setup(t)
	all := env.publish(t, "a", "b")
	p := topic.PutSubscriptionParams{Name: "s", Start: all[0], MaxWaiting: 1, Filters: []topic.SubscriptionFilter{
		wants(t, "a", []string{"a"}, ""), wants(t, "b", []string{"b"}, ""),
	}}
	if !env.put(t, p) || env.put(t, p) {
		t.Error("it is new once")
	}
	if sub := env.get(t); sub.Version != 1 || len(sub.Filters) != 2 || sub.StartPosition != all[0] || sub.Position != all[0] {
		t.Errorf("put: %+v", sub)
	}
	p.Start, p.Filters = 0, p.Filters[:1]
	env.put(t, p)
	if sub := env.get(t); sub.Version != 2 || len(sub.Filters) != 1 || sub.Position != all[0] {
		t.Errorf("changed: %+v", sub)
	}
	for i, change := range []func() (bool, error){
		func() (bool, error) { p.IfVersions = []int64{1}; return env.PutSubscription(t.Context(), p) },
		func() (bool, error) { return false, env.DeleteSubscription(t.Context(), "s", []int64{1, 3}) },
		func() (bool, error) {
			return env.PutSubscription(t.Context(), topic.PutSubscriptionParams{Name: "new", MaxWaiting: 1, IfExists: true})
		},
		func() (bool, error) {
			return env.PutSubscription(t.Context(), topic.PutSubscriptionParams{Name: "new", MaxWaiting: 1, IfVersions: []int64{1}})
		},
	} {
		if _, err := change(); !errors.Is(err, topic.ErrStale) {
			t.Errorf("change %d: %v, want ErrStale", i, err)
		}
	}
	p.IfVersions = []int64{7, 2}
	env.put(t, p)
	if err := env.DeleteFilter(t.Context(), "s", "b"); !errors.Is(err, topic.ErrFilterNotFound) {
		t.Errorf("deleting a filter that is not there: %v", err)
	}
	if err := env.DeleteFilter(t.Context(), "s", "a"); err != nil {
		t.Error(err)
	}
	if err := env.DeleteSubscription(t.Context(), "s", []int64{3}); err != nil {
		t.Error(err)
	}
}

func TestFiltersAreBounded(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.exec(t, `create or replace function agent_private.max_all_filters() returns int8 language sql immutable return 12;
		create or replace function agent_private.max_filters() returns int8 language sql immutable return 5`)
	named := func(name string, n int) (p topic.PutSubscriptionParams) {
		p.Name, p.MaxWaiting = name, 1
		for i := range n {
			p.Filters = append(p.Filters, wants(t, fmt.Sprint("f", i), nil, ""))
		}
		return p
	}
	var invalid *topic.InvalidError
	if _, err := env.PutSubscription(t.Context(), named("s", 6)); !errors.As(err, &invalid) || invalid.Field != "filters" {
		t.Errorf("six: %v", err)
	}
	env.put(t, named("s", 5))
	if err := env.PutFilter(t.Context(), "s", wants(t, "more", nil, "")); !errors.As(err, &invalid) {
		t.Errorf("a sixth: %v", err)
	}
	// Two calls that both fit, but not together, follow each other.
	other := environmentOn(t, env.url)
	other.exec(t, `begin`)
	other.exec(t, `select agent_service.put_subscription_if_match('t', $1, 0, 1, null, 1, null, false)`,
		`[{"name":"a","canonical":"a"},{"name":"b","canonical":"b"},{"name":"c","canonical":"c"},{"name":"d","canonical":"d"},{"name":"e","canonical":"e"}]`)
	done := make(chan error, 1)
	go func() {
		_, err := env.PutSubscription(t.Context(), named("u", 5))
		done <- err
	}()
	for waits := false; !waits && len(done) == 0; {
		waits = value[bool](t, env, `select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')`)
	}
	other.exec(t, `commit`)
	if err := <-done; !errors.As(err, &invalid) {
		t.Errorf("five more beside five others: %v", err)
	}
	if n := value[int](t, env, `select count(*) from agent.subscription_filter`); n != 10 {
		t.Errorf("%d filters, want 10 of at most 12", n)
	}
}

func TestSubscriptionsAreListedByName(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	for _, name := range []string{"c", "a", "d", "b"} {
		env.put(t, topic.PutSubscriptionParams{Name: name, Filters: []topic.SubscriptionFilter{everything(t)}})
	}
	env.publish(t, "x")
	var got []string
	for cursor := ""; ; {
		page, err := env.Subscriptions(t.Context(), 3, cursor, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range page.Subscriptions {
			got = append(got, fmt.Sprintf("%s%d%d", s.Name, s.FilterCount, s.LagEvents))
		}
		if cursor = page.Next; cursor == "" {
			break
		}
	}
	if want := []string{"a11", "b11", "c11", "d11"}; !slices.Equal(got, want) {
		t.Errorf("listed %q, want %q", got, want)
	}
	if slowest, err := env.SlowestSubscriptions(t.Context(), 3); err != nil || len(slowest) != 3 || slowest[0].Others != 1 || slowest[0].LagEvents != 1 {
		t.Errorf("the slowest are %+v, %v", slowest, err)
	}
}

// Beside an old snapshot the rows of former positions cannot be removed. Finding the newest must not become slower for that.
func TestCommitsKeepTheirPaceBesideAnOldSnapshot(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.subscribe(t, everything(t))
	old := environmentOn(t, env.url)
	old.exec(t, `begin isolation level repeatable read`)
	old.exec(t, `select count(*) from agent.subscription_position where reader <> 0`)
	// blocks returns how many blocks one commit reads.
	blocks := func() int {
		plan := value[string](t, env, `explain (analyze, buffers, format json)
			select agent_service.commit_cursor('s', p.reader, p.epoch, p.token, p.token + 1, 0, false, false)
			from agent.subscription s, agent_private.newest_position(s.id) p`)
		var explained []struct {
			Plan struct {
				Hits  int `json:"Shared Hit Blocks"`
				Reads int `json:"Shared Read Blocks"`
			}
		}
		if err := json.Unmarshal([]byte(plan), &explained); err != nil {
			t.Fatal(err)
		}
		return explained[0].Plan.Hits + explained[0].Plan.Reads
	}
	blocks() // prepares the statements
	before := blocks()
	const commits = 3000
	env.exec(t, `do $$
		declare p agent.subscription_position;
		begin
		  for _n in 1 .. `+fmt.Sprint(commits)+` loop
		    select * into p from agent.subscription_position where reader <> 0 order by number desc limit 1;
		    perform agent_service.commit_cursor('s', p.reader, p.epoch, p.token, _n, 0, false, false);
		    commit;
		  end loop;
		end $$`)
	if n := value[int](t, env, `select count(*) from agent.subscription_position where reader <> 0`); n != 1 {
		t.Errorf("%d rows, want 1", n)
	}
	if after := blocks(); after > before+20 {
		t.Errorf("a commit reads %d blocks after %d commits, and %d before", after, commits, before)
	}
	old.exec(t, `rollback`)
}

// All pairs of calls at once, from two processes: whatever happens, each event is committed over once or not at all, and nothing fails otherwise than as
// documented.
func TestConcurrentCallsOfASubscription(t *testing.T) {
	t.Parallel()
	env := setup(t)
	other := environmentOn(t, env.url)
	other.run(t)
	ctx, cancel := context.WithTimeout(t.Context(), busyTimeout)
	defer cancel()
	all := everything(t)
	readAndCommit := func(lease time.Duration) func(environment) error {
		return func(env environment) error {
			page, err := env.ReadSubscription(ctx, "s", topic.SubscribedParams{Limit: 3, Lease: lease})
			if err != nil || page.Cursor == "" {
				return err
			}
			return second(env.Commit(ctx, "s", page.Cursor))
		}
	}
	calls := map[string]func(environment) error{
		"read":  readAndCommit(0),
		"lease": readAndCommit(time.Second),
		"seek":  func(env environment) error { return env.seek(ctx, 0) },
		"put": func(env environment) error {
			return second(env.PutSubscription(ctx, topic.PutSubscriptionParams{Name: "s", Filters: []topic.SubscriptionFilter{all}, MaxWaiting: 1}))
		},
		"filter": func(env environment) error { return env.PutFilter(ctx, "s", all) },
		"remove": func(env environment) error { return env.DeleteFilter(ctx, "s", "all") },
		"delete": func(env environment) error { return env.DeleteSubscription(ctx, "s", nil) },
		"pause":  func(env environment) error { return env.PauseSubscription(ctx, "s") },
		"resume": func(env environment) error { return env.ResumeSubscription(ctx, "s") },
		"prune":  func(env environment) error { return second(env.Subscriptions(ctx, 10, "", nil, nil)) },
	}
	env.publish(t, slices.Repeat([]string{"a"}, 50)...)
	for a, first := range calls {
		for b, then := range calls {
			if a > b {
				continue
			}
			env.subscribe(t, all)
			if err := env.ResumeSubscription(ctx, "s"); err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			for i := range 4 {
				wg.Go(func() {
					for range 3 {
						caller, call, name := env, first, a
						if i%2 == 1 {
							caller, call, name = other, then, b
						}
						err := call(caller)
						if err != nil && !errors.Is(err, topic.ErrSubscriptionNotFound) && !errors.Is(err, topic.ErrCursorLost) && !errors.Is(err, topic.ErrFilterNotFound) {
							t.Errorf("%s beside %s and %s: %v", name, a, b, err)
						}
					}
				})
			}
			wg.Wait()
			if n := value[int](t, env, `select (select count(*) from agent.subscription) - (select count(*) from agent.subscription_position where reader <> 0)`); n != 0 {
				t.Errorf("%s and %s: %d subscriptions more than positions", a, b, n)
			}
		}
	}
}

// Several consumers in two processes share a subscription. Whoever wins the commit counts its events: none is counted twice, none is left out.
func TestConsumersOfOneSubscriptionCommitEachEventOnce(t *testing.T) {
	t.Parallel()
	env := setup(t)
	other := environmentOn(t, env.url)
	other.run(t)
	consumeOnce(t, env, other)
}

// consumeOnce has consumers of two processes commit what is published meanwhile.
func consumeOnce(t *testing.T, env, other environment) {
	t.Helper()
	env.subscribe(t, everything(t))
	const events = 400
	counts := make(map[int64]int)
	var mu sync.Mutex
	ctx, cancel := context.WithTimeout(t.Context(), busyTimeout)
	defer cancel()
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			from := []environment{env, other}[i%2]
			for ctx.Err() == nil {
				p := topic.SubscribedParams{Limit: 1 + i*3, Wait: 100 * time.Millisecond}
				if i >= 4 {
					p.Lease = time.Minute
				}
				page, err := from.ReadSubscription(ctx, "s", p)
				if err != nil {
					if ctx.Err() == nil {
						t.Errorf("reading: %v", err)
					}
					return
				}
				if len(page.Events) == 0 {
					continue
				}
				if _, err := from.Commit(ctx, "s", page.Cursor); errors.Is(err, topic.ErrCursorLost) {
					continue
				} else if err != nil {
					if ctx.Err() == nil {
						t.Errorf("committing: %v", err)
					}
					return
				}
				mu.Lock()
				for _, e := range page.Events {
					counts[e.Position]++
				}
				if len(counts) == events {
					cancel()
				}
				mu.Unlock()
			}
		})
	}
	var want []int64
	for range events / 20 {
		want = append(want, env.publish(t, slices.Repeat([]string{"a"}, 20)...)...)
	}
	wg.Wait()
	for _, position := range want {
		if counts[position] != 1 {
			t.Errorf("the event at %d was committed %d times", position, counts[position])
		}
	}
}

// TestLagCountsEventsOfAllSegments has one that is counted, four that are skipped by a new server and stay empty, and one that is open, in which
// another new server skips places.
func TestLagCountsEventsOfAllSegments(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.subscribe(t, everything(t))
	want := func(when string, events int64) {
		t.Helper()
		if sub := env.get(t); sub.LagEvents != events || (sub.LagSeconds > 0) != (events > 0) {
			t.Errorf("%s: the lag is %d events and %f s, want %d", when, sub.LagEvents, sub.LagSeconds, events)
		}
	}
	want("at first", 0)
	env.publish(t, "a", "a")
	want("in one segment", 2)
	env.exec(t, `delete from agent.log_server`)
	last := env.publish(t, "a", "a", "a")
	want("before the upkeep", 5)
	env.maintain(t)
	if n := value[int](t, env, `select count(*) from agent.log_segment where state = 'closed' and events = 0`); n != 4 {
		t.Fatalf("%d closed segments are empty, want 4", n)
	}
	want("after the upkeep", 5)
	env.exec(t, `delete from agent.log_server`)
	want("once the log has moved on again", 5)
	env.publish(t, "a")
	want("after another start", 6)
	if err := env.seek(t.Context(), last[0]-1); err != nil {
		t.Fatal(err)
	}
	want("in the second segment", 4)
	env.commit(t, env.next(t, topic.SubscribedParams{}).Cursor)
	want("at last", 0)
}

// TestCursorOfALeaseThatAFailoverHasLostIsRefused has the database be as before a lease, as a standby that lacks it. Somebody else takes one then.
func TestCursorOfALeaseThatAFailoverHasLostIsRefused(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.subscribe(t, everything(t))
	env.publish(t, "a")
	env.exec(t, `create table public.kept as table agent.subscription_position`)
	lost := env.next(t, topic.SubscribedParams{Lease: time.Minute})
	env.exec(t, `delete from agent.subscription_position`)
	env.exec(t, `insert into agent.subscription_position table public.kept`)
	page := env.next(t, topic.SubscribedParams{Lease: time.Minute})
	if _, err := env.Commit(t.Context(), "s", lost.Cursor); !errors.Is(err, topic.ErrCursorLost) {
		t.Errorf("the cursor of the lease that was lost: %v, want ErrCursorLost", err)
	}
	env.commit(t, page.Cursor)
}
