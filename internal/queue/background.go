package queue

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/watermark"
)

// sweepAll makes the service's own sweep.
func (s *Service) sweepAll(ctx context.Context) error {
	n, err := s.Sweep(ctx, SweepParams{MaxVTAge: pg.OrNull(s.cfg.MaxVTAge)})
	if n > 0 {
		s.cfg.Logger.Info().Int64("expired", n).Msg("swept")
	}
	return err
}

// scanBelowWatermarks makes the scans that are due.
func (s *Service) scanBelowWatermarks(ctx context.Context) error {
	var failed []error
	for scope, start := range s.watermarks.DueScans(time.Now()) {
		scan, err := s.scanBelow(ctx, scope, start)
		if s.watermarks.NoteScan(scope, scan) {
			s.wakeHere(map[string]bool{scope.Queue: true})
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("queue %s: %w", scope.Queue, err))
		}
	}
	return errors.Join(failed...)
}

// scanBelow finds the oldest claimable vt below the watermark of each lane.
func (s *Service) scanBelow(ctx context.Context, scope watermark.Scope, start watermark.Start) (scan watermark.Scan, err error) {
	var types []string
	if scope.Type == "" {
		start.Types = nil
	} else {
		types = []string{scope.Type}
	}
	scan.Began = time.Now()
	rows, _ := s.loops.Query(ctx, `select priority, vt, took from agent_service.check_watermarks($1, $2, $3, $4, $5, $6)`,
		scope.Queue, scope.MaxAttempts, types, start.Priorities, start.Types, start.Marks)
	found := make(map[int32]*time.Time)
	var priority int32
	var vt *time.Time
	_, err = pgx.ForEachRow(rows, []any{&priority, &vt, &scan.Took}, func() error {
		found[priority] = vt
		return nil
	})
	scan.Ended = time.Now()
	if err != nil {
		scan.Took = 0 // the watermarks are not active then
	} else {
		scan.Found = found
	}
	return scan, err
}

const (
	// serverInterval is the time between two checks of which server is the primary, and of its clock.
	serverInterval = 5 * time.Second
	// noticeableSkew is how far two servers' clocks must differ for a warning.
	noticeableSkew = time.Second
)

// server is the known state of the primary.
type server struct {
	mu       sync.Mutex
	timeline int64         // 0: not known
	at       time.Time     // the highest time that its clock has shown
	seen     time.Time     // when that was, by this process's clock
	behind   time.Duration // how far its clock was behind that of the primary before; negative: ahead
	setBack  time.Duration // by how much the clock of a server was set back, in all
	safety   *pg.Safety    // nil: not known
	isCopy   bool          // of a database, which nobody has adopted
}

// ServerState is the known state of the database's server.
type ServerState struct {
	ClockBehind time.Duration   // how far its clock was behind that of the primary before it, as this process saw it; negative: ahead
	SetBack     time.Duration   // by how much the clock of a server was set back, in all, as this process saw it
	Unsafe      map[string]bool // whether each of its settings that count for that puts commits at risk; nil: not known yet
	IsPooled    bool            // a pooler stands between
	IsListening bool            // notifications arrive
	Background  Background      // whether this process acts by itself
}

// Server describes the database's server, as far as it is known. It does not ask it.
func (s *Service) Server() ServerState {
	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	state := ServerState{ClockBehind: s.server.behind, SetBack: s.server.setBack, IsPooled: s.db.IsPooled(), IsListening: s.db.IsListening(), Background: s.background()}
	if s.server.safety != nil {
		state.Unsafe = make(map[string]bool, len(pg.SafetySettings))
		unsafe := s.unsafe(*s.server.safety)
		for _, name := range pg.SafetySettings {
			_, state.Unsafe[name] = unsafe[name]
		}
	}
	return state
}

// expected returns the time that the clock of the primary should show now, nil when nothing is known of it.
func (p *server) expected() *time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.at.IsZero() {
		return nil
	}
	now := p.at.Add(time.Since(p.seen))
	return &now
}

// checkServer records which server is the primary, and reads its time and its settings. When it is another one than before, or its clock was set back,
// watermarks are forgotten, as they are times of another clock, and all waiting claims try again.
func (s *Service) checkServer(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, serverInterval)
	defer cancel()
	expected := s.server.expected()
	rows, _ := s.loops.Query(ctx, `select timeline, at, behind, made_claimable from agent_service.record_server($1)`, expected)
	now, err := pg.CollectOne[struct {
		Timeline      int64
		At            time.Time
		Behind        *time.Duration
		MadeClaimable int64
	}](rows)
	if err != nil {
		return wrap("looking at the server", err)
	}
	wasOutdated := s.IsOutdated()
	if err := s.checkSchemaOn(ctx, s.loops); errors.Is(err, ErrOutdated) && !wasOutdated {
		s.cfg.Logger.Error().Err(err).Msg("every call is answered 503: stop this process and start the new version")
	}
	safety, err := pg.ReadSafety(ctx, s.loops)
	if err != nil {
		return wrap("looking at the server's settings", err)
	}

	p := &s.server
	p.mu.Lock()
	before := p.timeline
	isOther := before != 0 && before != now.Timeline
	if isOther && now.Behind != nil {
		p.behind = *now.Behind
	}
	var setBack time.Duration
	switch {
	case isOther:
	case expected != nil && p.at.Sub(now.At) > noticeableSkew:
		setBack = expected.Sub(now.At)
	case expected == nil && now.Behind != nil: // the clock was set back before this process knew it
		setBack = *now.Behind
	}
	isSetBack := setBack > 0
	p.setBack += setBack
	if isOther || isSetBack || now.At.After(p.at) {
		p.at, p.seen = now.At, time.Now()
	}
	isChanged := p.safety == nil || *p.safety != safety || isOther
	p.timeline, p.safety = now.Timeline, &safety
	skew := p.behind
	p.mu.Unlock()

	if isChanged {
		s.warnOfSafety(safety)
	}
	if isSetBack {
		s.cfg.Logger.Warn().Dur("set_back", setBack).Int64("events", now.MadeClaimable).
			Msg("the clock of the database's server was set back: events that were claimable before are claimable now; leases, delays and schedules end or come later by that much")
	} else if now.MadeClaimable > 0 {
		s.cfg.Logger.Warn().Int64("events", now.MadeClaimable).
			Msg("the new primary's clock is behind: events that were claimable by the old one's are claimable now")
	}
	switch {
	case isSetBack:
		s.watermarks.Forget()
		s.wakeAll()
		return nil
	case !isOther:
		return nil
	}
	s.cfg.Logger.Warn().Str("timeline", fmt.Sprintf("%08X", now.Timeline)).Str("before", fmt.Sprintf("%08X", before)).
		Dur("clock_behind", skew).Msg("another server is the primary; ids go on beyond those that may have been lost")
	if skew.Abs() > noticeableSkew {
		s.cfg.Logger.Warn().Dur("clock_behind", skew).Msg("the new primary's clock differs from the old one's: leases and delays end earlier or later by that much")
	}
	s.watermarks.Forget()
	s.wakeAll()
	return nil
}

// unsafe returns the settings under which commits of this server may be lost, with the consequence of each.
func (s *Service) unsafe(safety pg.Safety) map[string]string {
	unsafe := safety.Unsafe()
	if s.cfg.HasNoStandby && !s.cfg.RequireSync {
		delete(unsafe, "synchronous_standby_names")
	}
	return unsafe
}

// warnOfSafety logs which settings put commits at risk.
func (s *Service) warnOfSafety(safety pg.Safety) {
	for name, consequence := range s.unsafe(safety) {
		if name == "synchronous_standby_names" && !s.cfg.RequireSync { // fine for many, and to be known
			s.cfg.Logger.Info().Str("setting", name).
				Msg("commits wait for no standby, as synchronous_standby_names is empty: if the server has a standby, a failover to it loses commits that it has not received; a server without one needs nothing")
			continue
		}
		s.cfg.Logger.Warn().Str("setting", name).Msg("the server's settings put what is committed at risk: " + name + ", " + consequence)
	}
}
