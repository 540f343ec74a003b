package queue

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/queued/queued/internal/watermark"
)

// PendingCalls returns how many calls wait for a writer, and how many writers run.
func PendingCalls(s *Service) (calls, writers int) { return s.commits.Waiting() }

// Watermark returns the watermark of a queue's lane of priority 0 (zero: none), and whether the lanes of the queue are known.
// No claim of the queue may be running.
func Watermark(s *Service, queue string) (mark time.Time, knowsLanes bool) {
	start := s.watermarks.Begin(time.Now(), watermark.Claims{Queue: queue, MaxAttempts: s.cfg.MaxAttempts})
	for i, priority := range start.Priorities {
		if priority == 0 && start.Marks != nil && start.Marks[i] != nil {
			mark = *start.Marks[i]
		}
	}
	return mark, start.Priorities != nil
}

// DescribeWatermarks says where a claim of a queue would begin, for tests that fail.
func DescribeWatermarks(s *Service, queue string) string {
	start := s.watermarks.Begin(time.Now(), watermark.Claims{Queue: cmp.Or(queue, Default), MaxAttempts: s.cfg.MaxAttempts})
	var lanes strings.Builder
	fmt.Fprintf(&lanes, "lanes %v", start.Priorities)
	for _, mark := range start.Marks {
		fmt.Fprintf(&lanes, " from %v", mark)
	}
	return lanes.String()
}

// Offers reports whether an insert into the queue would claim for the queue's waiters in its own transaction.
func Offers(s *Service, queue string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.dispatchers[queue]
	if d == nil {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.offer != nil
}

// IsTold reports whether the service is told of everything that becomes claimable.
func IsTold(s *Service) bool { return s.isTold() }

// Waiting returns how many claims wait for events.
func Waiting(s *Service) int { return s.waiting() }

// LookUpGap is the shortest time between two look-ups of queues.
const LookUpGap = lookUpGap

// CountLookUps counts the look-ups of queues from now on.
func CountLookUps(s *Service) *atomic.Int64 {
	n, find := new(atomic.Int64), s.declared.lookUps.Find
	s.declared.lookUps.Find = func(ctx context.Context, queues []string) (map[string]bool, error) {
		n.Add(1)
		return find(ctx, queues)
	}
	return n
}

// NoteUndeclared has the service take note of a refusal: a queue was not declared when the database was asked.
func NoteUndeclared(s *Service, queue string, asked time.Time) {
	s.declared.noteUndeclared(queue, asked)
}

// VerifyDeclared verifies the declared queues, as a running service does from time to time.
func VerifyDeclared(t *testing.T, s *Service) {
	t.Helper()
	if err := s.declared.verify(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// ForgetQueue is what a notification of its deletion, or of its declaration, makes a service do.
func (s *Service) ForgetQueue(queue string) { s.forgetQueue(queue) }

// NeverLookForEnds has a service not look for events that others have ended: only what it ends itself wakes those who wait.
func NeverLookForEnds(s *Service) {
	s.ends.mu.Lock()
	defer s.ends.mu.Unlock()
	s.ends.isLooking = true
}

// LooksForEnds reports whether the goroutine runs that looks for events that others have ended.
func LooksForEnds(s *Service) bool {
	s.ends.mu.Lock()
	defer s.ends.mu.Unlock()
	return s.ends.isLooking
}

// RestsFromRedrives reports whether the next look for redrives comes after redriveRest, or when a notification tells of one.
func RestsFromRedrives(s *Service) bool { return time.Duration(s.redrives.pause.Load()) == redriveRest }

// SampleQueues samples the queues and counts outcomes, as a running service does each minute.
func SampleQueues(t *testing.T, s *Service) {
	t.Helper()
	if err := s.sampleQueues(t.Context()); err != nil {
		t.Fatal(err)
	}
}
