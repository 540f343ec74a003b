package body

import (
	"errors"
	"net/http/httptest"
	"testing"
	"time"
)

// A reader is a client that takes what the test lets it take.
type reader struct {
	*httptest.ResponseRecorder
	takes chan int // bytes that the client takes of a write
	cut   chan struct{}
}

func newReader() *reader {
	return &reader{httptest.NewRecorder(), make(chan int), make(chan struct{})}
}

func (r *reader) Write(p []byte) (int, error) {
	select {
	case <-r.takes:
		return len(p), nil
	case <-r.cut:
		return 0, errors.New("the time is over")
	}
}

// SetWriteDeadline is called by http.ResponseController.
func (r *reader) SetWriteDeadline(time.Time) error {
	close(r.cut)
	return nil
}

// frozenAnswers is a budget of 8 MiB for which no time passes but what the test lets pass.
func frozenAnswers() (answers *Answers, pass func(time.Duration)) {
	answers = NewAnswers(8 << 20)
	now := time.Now()
	answers.now = func() time.Time { return now }
	return answers, func(d time.Duration) { now = now.Add(d) }
}

// mustBegin takes the memory of an answer that there has to be memory for.
func mustBegin(t *testing.T, answers *Answers, client *reader, caller string, size int64) *Answer {
	t.Helper()
	answer, err := answers.Begin(client, caller, size)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

func TestAnswersBeyondTheBudgetAreRefusedAndTheOthersStay(t *testing.T) {
	t.Parallel()
	answers, _ := frozenAnswers()
	first := mustBegin(t, answers, newReader(), "a", 5<<20)
	second := mustBegin(t, answers, newReader(), "b", 3<<20)
	if _, err := answers.Begin(newReader(), "c", LargeAnswer); !errors.Is(err, ErrAnswersFull) {
		t.Errorf("got %v", err)
	}
	first.End()
	first.End()
	third := mustBegin(t, answers, newReader(), "c", LargeAnswer)
	if s := answers.Stats(); s.Bytes != 3<<20+LargeAnswer || s.Full != 1 || s.TooSlow != 0 {
		t.Errorf("got %+v", s)
	}
	second.End()
	third.End()
	if s := answers.Stats(); s.Bytes != 0 || len(answers.held) != 0 {
		t.Errorf("got %+v, held %v", s, answers.held)
	}
}

func TestOneCallerHasThreeQuartersOfTheBudgetForAnswers(t *testing.T) {
	t.Parallel()
	answers, _ := frozenAnswers()
	mustBegin(t, answers, newReader(), "a", 6<<20)
	if _, err := answers.Begin(newReader(), "a", LargeAnswer); !errors.Is(err, ErrAnswersFull) {
		t.Errorf("got %v", err)
	}
	mustBegin(t, answers, newReader(), "b", 2<<20)
	alone, _ := frozenAnswers()
	mustBegin(t, alone, newReader(), "a", 100<<20) // any answer fits while there are no others
}

func TestAnswerThatIsNotReadGivesWayToOthers(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]struct {
		caller string
		size   int64
	}{"of another caller": {"b", 4 << 20}, "of the same caller": {"a", 2 << 20}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answers, pass := frozenAnswers()
			read, unread := newReader(), newReader()
			fast := mustBegin(t, answers, read, "a", 1<<20)
			slow := mustBegin(t, answers, unread, "a", 5<<20)
			ended := make(chan error)
			for client, answer := range map[*reader]*Answer{read: fast, unread: slow} {
				go func() {
					_, err := answer.Write(make([]byte, answer.size))
					answer.End()
					ended <- err
				}()
				client.takes <- 1
			}
			for progressed := false; !progressed; { // until both have noted their progress
				answers.mu.Lock()
				progressed = fast.sent > 0 && slow.sent > 0
				answers.mu.Unlock()
			}
			if _, err := answers.Begin(newReader(), of.caller, of.size); !errors.Is(err, ErrAnswersFull) {
				t.Errorf("before the time is over: got %v", err)
			}
			pass(2 * grace)
			for range fast.size/LargeAnswer - 1 {
				read.takes <- 1
			}
			if err := <-ended; err != nil {
				t.Errorf("the fast one: %v", err)
			}
			mustBegin(t, answers, newReader(), of.caller, of.size)
			if err := <-ended; !errors.Is(err, ErrReadSlowly) {
				t.Errorf("the slow one: got %v", err)
			}
			if s := answers.Stats(); s.Bytes != of.size || s.TooSlow != 1 {
				t.Errorf("got %+v", s)
			}
		})
	}
}

func TestAnswerThatIsReadSlowlyOnTheAverageGivesWay(t *testing.T) {
	t.Parallel()
	answers, pass := frozenAnswers()
	answer := mustBegin(t, answers, newReader(), "a", 6<<20)
	for range 20 { // 64 KiB in each half second, where 128 are needed
		pass(500 * time.Millisecond)
		answer.progress(LargeAnswer)
	}
	mustBegin(t, answers, newReader(), "b", 4<<20)
	if !answer.gaveWay {
		t.Error("it goes on")
	}
}
