package queue_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// TestFilterByCauseTakesWhatIsGroupedUnderIt groups errors by their causes, and looks for the events of each. Errors are made of pieces that stand for each placeholder, of
// white space, and of what means something in regular expressions.
func TestFilterByCauseTakesWhatIsGroupedUnderIt(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	b := setup(t, nil)
	seed := uint64(1)
	if pgtest.IsNightly() {
		seed = uint64(time.Now().UnixNano())
		t.Logf("the seed is %d", seed)
	}
	random := rand.New(rand.NewPCG(seed, 1))
	pieces := []string{
		"dial tcp", "10.0.3.17:5432", "[2001:db8::1]:80", "ada@example.com", "status 503", "code: 42", "order-4711", "db-3.internal:25", "A17x9B22", "deadbeef01", "0x7fA9", "30ms", "1m30.5s", "5µs",
		"2026-02-03T04:05:06Z", "2026-02-03 04:05:06", "04:05", "123e4567-e89b-12d3-a456-426614174000", `"a \"b\" c"`, "'it''s'", "`x`", "don't", `"open`, "-17", "+1e5", "+1e51e", "1,234.5", "1e-", "v2", "<number>", "<time>", "<id",
		"(a|b)*", "[x]", "a.b", "^$", `\d`, "{1,2}", "***", "ü", "…", "  ", "\n\tat x(Y.java:13)", "\u00a0", "\u0085", "100%", "HTTP/1.1 500", "sqlstate 40001",
	}
	errs := slices.Clone(pieces)
	for range 250 {
		var text strings.Builder
		for range 1 + random.IntN(12) {
			text.WriteString(pieces[random.IntN(len(pieces))])
			text.WriteString([]string{" ", " ", "", ": ", "\n"}[random.IntN(5)])
		}
		errs = append(errs, text.String())
	}
	for range 20 {
		errs = append(errs, strings.Repeat(pieces[random.IntN(len(pieces))]+" ", 400), strings.Repeat(" ", random.IntN(900))+"late "+pieces[random.IntN(len(pieces))])
	}
	encoded, err := json.Marshal(errs)
	if err != nil {
		t.Fatal(err)
	}
	b.exec(t, `select agent.insert_event(_event => jsonb_build_object('n', i), _queue => 'q') from generate_series(1, $1) as i`, len(errs))
	b.exec(t, `select agent.delete_event(id) from agent.event`)
	b.exec(t, `update agent.event_hist set outcome = 'failed', last_error = $1::jsonb ->> ((event ->> 'n')::int4 - 1)`, encoded)
	found, err := b.Causes(t.Context(), queue.CausesParams{Limit: 10_000})
	if err != nil || found.LookedAt < int64(len(errs)*9/10) { // a text of white space is no error
		t.Fatalf("%d of %d errors were looked at: %v", found.LookedAt, len(errs), err)
	}
	for _, c := range found.Causes {
		if c.Text == "" {
			continue
		}
		page, err := b.History(t.Context(), queue.HistoryParams{HistoryFilter: queue.HistoryFilter{Cause: c.Text}, Limit: 1000})
		if err != nil {
			t.Fatalf("%q: %v", c.Text, err)
		}
		isFound := slices.ContainsFunc(page.Events, func(e queue.Event) bool { return e.ID == c.ExampleID })
		if int64(len(page.Events)) < c.Count || !isFound {
			t.Errorf("%q: %d events, of %d, such as %q", c.Text, len(page.Events), c.Count, c.ExampleError)
		}
	}
}

func TestFilterByCauseLeavesOtherCausesOut(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	for cause, c := range map[string]struct{ takes, leaves []string }{
		"status 503 from <address>":     {[]string{"status 503 from 10.0.0.1", "status  503\nfrom 2001:db8::1 "}, []string{"status 404 from 10.0.0.1", "a status 503 from 10.0.0.1", "status 503 from 10.0.0.1 again", "status 503 from "}},
		"no mailbox <id>":               {[]string{"no mailbox A17x9B22"}, []string{"no mailbox", "no mailbox a b"}},
		"<string> is no <number> (a|b)": {[]string{`"x" is no 17 (a|b)`, "'it' is no -1e5 (a|b)"}, []string{`x is no 17 (a|b)`, `"x" is no y (a|b)`, `"x" is no 17 a`, `"x" is no 17 (a`}},
		"took <duration> until <time>":  {[]string{"took 30ms until 2026-02-03 04:05:06"}, []string{"took long until 04:05"}},
	} {
		for want, errs := range map[bool][]string{true: c.takes, false: c.leaves} {
			for _, text := range errs {
				if got := pgtest.Query[bool](t, b.sql, fmt.Sprintf(`select '%s' ~ agent_private.cause_pattern('%s')`, strings.ReplaceAll(text, "'", "''"), cause)); got != want {
					t.Errorf("%q takes %q: %t, want %t", cause, text, got, want)
				}
			}
		}
	}
	for _, cause := range []string{strings.Repeat("<time> ", 43), strings.Repeat("(", 300), strings.Repeat("<string>", 37)} {
		if _, err := b.History(t.Context(), queue.HistoryParams{HistoryFilter: queue.HistoryFilter{Cause: cause}}); err != nil {
			t.Errorf("%q: %v", cause, err)
		}
	}
}
