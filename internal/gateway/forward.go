package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/queued/queued/internal/failure"
)

// What subscriptions, sources and schedules at home insert into a queue that is placed on other cells waits at home in a queue of the service, queued.forward.<cell>. Any
// gateway brings it there: it claims many, inserts them on the cell under their ids at home, by which the cell knows those that it has, and acks them. So each
// is on the cell once, whichever of the three goes away when.

// How events are forwarded.
const (
	forwardLimit     = 100 // events of a claim
	forwardWait      = 20 * time.Second
	forwardLease     = 30 * time.Second
	forwardTime      = 10 * time.Second // that a cell may take for one insert, and home for an ack
	forwardTries     = 10 * time.Second // that inserts are repeated for; then others get the events when the lease is over
	forwardRefused   = "1m"             // until an event is tried again that its cell does not take
	maxForwardClaim  = 512 << 20        // bytes of the answer to a claim: home bounds it, at 8 MiB and one event more
	maxForwardInsert = 4 << 20          // bytes of the events of one insert, or one event: a half of what a cell takes at once unless it is set otherwise
)

// A waitingEvent is an event of queued.forward.<cell>, claimed.
type waitingEvent struct {
	ID      int64  `json:"id"`
	Receipt string `json:"receipt"`
	Meta    struct {
		VerifiedSource string `json:"verified_source"` // the source that it came in for, if it did
	} `json:"meta"`

	body json.RawMessage // as it goes to the cell
}

// forward brings a cell the events that home has wait for it, until ctx ends, or the gateway drains.
func (g *Gateway) forward(ctx context.Context, to *cell) {
	isReady := func() bool { return to.isUp() && g.home().isUp() && g.single() == nil && g.drain.Err() == nil }
	g.keepDoing(ctx, "forwarding", isReady, func() (bool, error) {
		moved, err := g.forwardOnce(ctx, to)
		return moved > 0, err
	}, func(err error) {
		to.log.Error().Func(failure.Of(err)).Msg("events that home has wait for the cell could not be brought there; they stay")
	})
}

// forwardOnce waits for events, brings them to the cell, and returns how many.
func (g *Gateway) forwardOnce(ctx context.Context, to *cell) (moved int, err error) {
	events, err := g.claimForwarded(ctx, to)
	if err != nil {
		return 0, err
	}
	moved = len(events)
	for len(events) > 0 {
		n, size := 0, 0
		for n < len(events) && (n == 0 || size+len(events[n].body) <= maxForwardInsert) {
			size += len(events[n].body)
			n++
		}
		if err := g.bring(ctx, to, events[:n], time.Now()); err != nil {
			return moved, err
		}
		events = events[n:]
	}
	return moved, nil
}

// claimForwarded claims events, and waits for some. The wait ends when the cell goes away, or the gateway drains.
func (g *Gateway) claimForwarded(ctx context.Context, to *cell) ([]waitingEvent, error) {
	life := to.state.Load().waitLife
	claiming, cancel := context.WithTimeout(ctx, forwardWait+followSpare)
	defer cancel()
	defer context.AfterFunc(life, cancel)() //nolint:contextcheck // it is of the cell, beside ctx
	claim := fmt.Sprintf(`{"queue":"queued.forward.%d","limit":%d,"wait":%q,"invisible_for":%q,"worker":"gateway"}`, to.number, forwardLimit, forwardWait, forwardLease)
	_, text, err := g.home().fetch(claiming, http.MethodPost, "/claim", g.home().jsonHeader(), bytes.NewReader([]byte(claim)), maxForwardClaim)
	if err != nil {
		if life.Err() != nil {
			return nil, nil
		}
		return nil, err
	}
	var page struct {
		Events []json.RawMessage `json:"events"`
	}
	if err := json.Unmarshal(text, &page); err != nil {
		return nil, fmt.Errorf("POST /claim: %w", err)
	}
	events := make([]waitingEvent, len(page.Events))
	for i, body := range page.Events {
		if err := json.Unmarshal(body, &events[i]); err != nil {
			return nil, fmt.Errorf("POST /claim: %w", err)
		}
		if events[i].body = body; events[i].Meta.VerifiedSource != "" {
			if err := g.addRaw(ctx, &events[i]); err != nil {
				return nil, err
			}
		}
	}
	return events, nil
}

// addRaw adds the body that an event came in as, if that is kept.
func (g *Gateway) addRaw(ctx context.Context, e *waitingEvent) error {
	limited, cancel := context.WithTimeout(ctx, forwardTime)
	defer cancel()
	header, body, err := g.home().fetch(limited, http.MethodGet, "/events/"+strconv.FormatInt(e.ID, 10)+"/raw", g.home().ownHeader(), nil, maxForwardClaim)
	if isAnswer(err, http.StatusNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	until, err := http.ParseTime(header.Get("Expires"))
	if err != nil {
		return err
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(e.body, &members); err != nil {
		return err
	}
	members["raw"], err = json.Marshal(struct {
		Body      []byte    `json:"body"`
		MediaType string    `json:"media_type"`
		KeptUntil time.Time `json:"kept_until"`
	}{body, header.Get("Content-Type"), until})
	if err != nil {
		return err
	}
	e.body, err = json.Marshal(members)
	return err
}

// bring inserts events on a cell and acks them at home. An insert whose outcome is unknown is repeated, as the cell knows what it has; an event that the cell does not take
// waits, and is tried again.
func (g *Gateway) bring(ctx context.Context, to *cell, events []waitingEvent, began time.Time) error {
	bodies := make([]json.RawMessage, len(events))
	for i, e := range events {
		bodies[i] = e.body
	}
	request, err := json.Marshal(map[string][]json.RawMessage{"events": bodies})
	if err != nil {
		return err
	}
	var inserted struct {
		Events []insertedEvent `json:"events"`
	}
	for {
		limited, cancel := context.WithTimeout(ctx, forwardTime)
		err = to.do(limited, http.MethodPost, "/cell/events", to.jsonHeader(), bytes.NewReader(request), &inserted)
		cancel()
		refused, isAnswered := errors.AsType[*answered](err)
		switch {
		case err == nil:
			return g.ackForwarded(ctx, to, events, inserted.Events)
		case isAnswered && (refused.status == http.StatusRequestEntityTooLarge || refused.status == http.StatusUnprocessableEntity || refused.status == http.StatusBadRequest) && len(events) > 1:
			half := len(events) / 2
			return errors.Join(g.bring(ctx, to, events[:half], began), g.bring(ctx, to, events[half:], began)) // which finds the one that is
		case isAnswered && refused.status < http.StatusInternalServerError && refused.status != http.StatusTooManyRequests && len(events) == 1:
			return g.ackForwarded(ctx, to, events, []insertedEvent{{Forwarded: events[0].ID, Result: "refused", Detail: fmt.Sprintf("%d %.1000s", refused.status, refused.body)}})
		case time.Since(began) > forwardTries, !to.isUp():
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(lookEvery):
		}
	}
}

// An insertedEvent is what became of an event on its cell.
type insertedEvent struct {
	Forwarded int64  `json:"forwarded"`
	ID        int64  `json:"id"`
	Result    string `json:"result"`
	Detail    string `json:"detail"`
}

// ackForwarded acks at home the events that their cell has, with their ids there, and puts off those that it does not take.
func (g *Gateway) ackForwarded(ctx context.Context, to *cell, events []waitingEvent, inserted []insertedEvent) error {
	limited, cancel := context.WithTimeout(ctx, forwardTime)
	defer cancel()
	became := make(map[int64]insertedEvent, len(inserted))
	for _, one := range inserted {
		became[one.Forwarded] = one
	}
	type ack struct {
		ID      int64          `json:"id"`
		Receipt string         `json:"receipt"`
		Result  map[string]any `json:"result"`
	}
	var acks []ack
	var failed error
	for _, e := range events {
		switch one := became[e.ID]; one.Result {
		case "inserted", "known":
			acks = append(acks, ack{e.ID, e.Receipt, map[string]any{"cell": to.number, "id": one.ID}})
			if one.Result == "inserted" {
				g.metrics.forwards.WithLabelValues(to.label).Inc()
			}
		default:
			to.log.Error().Str(failure.Field, "refused").Int64("id", e.ID).Str("error", one.Detail).Msg("the cell does not take an event that home has wait for it; it stays")
			body, err := json.Marshal(map[string]string{"receipt": e.Receipt, "error": fmt.Sprintf("cell %d does not take it: %.1000s", to.number, one.Detail), "delay": forwardRefused})
			if err == nil {
				err = g.home().do(limited, http.MethodPost, fmt.Sprintf("/events/%d/nack", e.ID), g.home().jsonHeader(), bytes.NewReader(body), nil)
			}
			failed = errors.Join(failed, err)
		}
	}
	if len(acks) == 0 {
		return failed
	}
	body, err := json.Marshal(map[string][]ack{"events": acks})
	if err == nil {
		err = g.home().do(limited, http.MethodPost, "/ack", g.home().jsonHeader(), bytes.NewReader(body), nil)
	}
	return errors.Join(failed, err)
}
