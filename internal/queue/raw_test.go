package queue_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// withRaw is an event that came in as body, which is to be kept for an hour.
func withRaw(body string) queue.InsertParams {
	return queue.InsertParams{Event: json.RawMessage(`{}`), Raw: &queue.RawBody{Body: []byte(body), MediaType: "text/x", Keep: time.Hour}}
}

func TestEachEventOfABatchKeepsItsOwnRawBody(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	events := []queue.InsertParams{withRaw("\x00\xff"), {Event: json.RawMessage(`{}`)}, withRaw("second"), withRaw("replayed"), withRaw("")}
	events[2].IdempotencyKey, events[3].IdempotencyKey = "k", "k"
	inserted, err := b.Insert(t.Context(), events)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"\x00\xff", "none", "second", "second", ""} {
		raw, err := b.RawBody(t.Context(), inserted[i].ID)
		switch {
		case want == "none":
			if !errors.Is(err, queue.ErrNoRawBody) {
				t.Errorf("event %d: %v, want ErrNoRawBody", i, err)
			}
		case err != nil:
			t.Errorf("event %d: %v", i, err)
		case string(raw.Body) != want, raw.MediaType != "text/x", time.Until(raw.KeptUntil) > time.Hour, time.Until(raw.KeptUntil) < 0:
			t.Errorf("event %d came in as %q, of the type %s, kept until %v, want %q", i, raw.Body, raw.MediaType, raw.KeptUntil, want)
		}
	}
}

func TestEventThatIsClaimedAsItIsInsertedKeepsItsRawBody(t *testing.T) {
	t.Parallel()
	b := setup(t, neverPolls)
	got := whileWaiting(t, b, queue.ClaimParams{}, func() {
		if _, err := b.Insert(t.Context(), []queue.InsertParams{withRaw("x")}); err != nil {
			t.Error(err)
		}
	})
	if raw, err := b.RawBody(t.Context(), got[0].ID); err != nil || string(raw.Body) != "x" {
		t.Errorf("it came in as %q, %v", raw.Body, err)
	}
}

func TestRawBodiesArePrunedAfterTheirTime(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	old, kept := b.insertEvents(t, withRaw("old"))[0], b.insertEvents(t, withRaw("kept"))[0]
	b.exec(t, `update agent.raw_body set kept_until = now() where event_id = $1`, old)
	if _, err := b.RawBody(t.Context(), old); !errors.Is(err, queue.ErrNoRawBody) {
		t.Errorf("the old one: %v, want ErrNoRawBody", err)
	}
	if n := pgtest.Query[int](t, b.sql, `select agent.prune_raw_bodies()`); n != 1 {
		t.Errorf("%d were pruned, want 1", n)
	}
	if raw, err := b.RawBody(t.Context(), kept); err != nil || string(raw.Body) != "kept" {
		t.Errorf("the other one is %q, %v", raw.Body, err)
	}
}

func TestKeepRawBodyRefusesWhatItCannotKeep(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	id := b.insertEvents(t, queue.InsertParams{Event: json.RawMessage(`{}`)})[0]
	for arguments, want := range map[string]string{
		fmt.Sprintf(`%d, '', _keep => '0'`, id):                    "QD003",
		fmt.Sprintf(`%d, '', _keep => null`, id):                   "QD003",
		fmt.Sprintf(`%d, '', _keep => '3651 days'`, id):            "QD003",
		fmt.Sprintf(`%d, null`, id):                                "QD003",
		fmt.Sprintf(`%d, '', _media_type => repeat('x', 256)`, id): "QD003",
		fmt.Sprintf(`%d, ''`, id+1):                                "QD002",
		`null, ''`:                                                 "QD002",
	} {
		_, err := b.sql.Exec(t.Context(), `select agent.keep_raw_body(`+arguments+`)`)
		if pgErr, ok := errors.AsType[*pgconn.PgError](err); !ok || pgErr.Code != want {
			t.Errorf("%s: %v, want SQLSTATE %s", arguments, err, want)
		}
	}
	b.exec(t, `select agent.keep_raw_body($1, 'first'), agent.keep_raw_body($1, 'second')`, id)
	if raw, err := b.RawBody(t.Context(), id); err != nil || string(raw.Body) != "first" {
		t.Errorf("it came in as %q, %v, want the first that was kept", raw.Body, err)
	}
}
