package body

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// A sender is a body that arrives as the test says.
type sender struct {
	parts chan []byte   // what arrives; closed: its end
	asked chan struct{} // somebody reads on
	ended chan struct{} // the reading was interrupted
	rest  []byte
}

func newSender() *sender {
	return &sender{parts: make(chan []byte), asked: make(chan struct{}, 1000), ended: make(chan struct{})}
}

func (s *sender) Read(p []byte) (int, error) {
	if len(s.rest) == 0 {
		s.asked <- struct{}{}
		select {
		case part, ok := <-s.parts:
			if !ok {
				return 0, io.EOF
			}
			s.rest = part
		case <-s.ended:
			return 0, errors.New("the time is over")
		}
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

func (*sender) Close() error { return nil }

// A response is one whose reading can be interrupted.
type response struct {
	*httptest.ResponseRecorder
	from *sender
}

// SetReadDeadline is called by http.ResponseController.
func (r *response) SetReadDeadline(at time.Time) error {
	if at.Before(time.Now()) {
		close(r.from.ended)
	}
	return nil
}

// A reading is a body that is being read.
type reading struct {
	*sender
	hold *Hold
	done chan error
	body []byte
}

// frozen is a budget for which no time passes: no body is late, whatever else the machine does.
func frozen(cfg Config) *Budget {
	b := NewBudget(cfg)
	now := time.Now()
	b.now = func() time.Time { return now }
	return b
}

// begin reads a body of this length.
func begin(b *Budget, length int64, isUnverified bool) *reading {
	r := &reading{sender: newSender(), hold: new(Hold), done: make(chan error, 1)}
	request := httptest.NewRequest(http.MethodPost, "/", nil)
	request.Body, request.ContentLength = r.sender, length
	read := r.hold.Read
	if isUnverified {
		read = r.hold.ReadUnverified
	}
	go func() {
		body, err := read(b, &response{httptest.NewRecorder(), r.sender}, request, 1<<30)
		r.body = body
		r.done <- err
	}()
	return r
}

// send has n bytes arrive, and returns when all of them were read.
func (r *reading) send(n int) {
	<-r.asked
	r.parts <- make([]byte, n)
	<-r.asked
	r.asked <- struct{}{}
}

func read(b *Budget, h *Hold, body io.Reader, length, limit int64) ([]byte, error) {
	r := httptest.NewRequest(http.MethodPost, "/", body)
	r.ContentLength = length
	return h.Read(b, httptest.NewRecorder(), r, limit)
}

func TestBodiesAreReadAsTheyCome(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 511, 512, 513, firstKnown - 1, firstKnown, firstKnown + 1, 100_000} {
		want := bytes.Repeat([]byte("abcdefg"), n)[:n]
		for name, from := range map[string]io.Reader{"at once": bytes.NewReader(want), "byte by byte": iotest.OneByteReader(bytes.NewReader(want)), "with its end": iotest.DataErrReader(bytes.NewReader(want))} {
			for _, length := range []int64{int64(n), -1} {
				b, h := NewBudget(Config{}), new(Hold)
				if seeker, ok := from.(io.Seeker); ok {
					_, _ = seeker.Seek(0, io.SeekStart)
				} else {
					from = map[string]func() io.Reader{
						"byte by byte": func() io.Reader { return iotest.OneByteReader(bytes.NewReader(want)) },
						"with its end": func() io.Reader { return iotest.DataErrReader(bytes.NewReader(want)) },
					}[name]()
				}
				got, err := read(b, h, from, length, int64(n))
				if err != nil || !bytes.Equal(got, want) {
					t.Fatalf("%d bytes %s, length %d: got %d bytes and %v", n, name, length, len(got), err)
				}
				if used := b.Stats().Verified; used < int64(n) || used > max(2*int64(n), 1024) {
					t.Errorf("%d bytes %s take %d of the budget", n, name, used)
				}
				h.Release()
				if used := b.Stats().Verified; used != 0 {
					t.Errorf("%d bytes are left", used)
				}
			}
		}
	}
}

func TestBodiesBeyondTheirLimitAndBrokenOnesAreRefused(t *testing.T) {
	t.Parallel()
	b := NewBudget(Config{})
	for name, c := range map[string]struct {
		body   io.Reader
		length int64
		isOver bool
	}{
		"too long":             {strings.NewReader("12345"), 5, true},
		"too long, and unsaid": {strings.NewReader("12345"), -1, true},
		"shorter than said":    {strings.NewReader("12"), 3, false},
		"broken":               {iotest.ErrReader(io.ErrUnexpectedEOF), -1, false},
	} {
		var h Hold
		_, err := read(b, &h, c.body, c.length, 4)
		if isOver := errors.As(err, new(*http.MaxBytesError)); err == nil || isOver != c.isOver {
			t.Errorf("%s: got %v", name, err)
		}
		h.Release()
	}
	if s := b.Stats(); s.Verified != 0 || s.Full != 0 {
		t.Errorf("got %+v", s)
	}
}

func TestBodyTakesOnlyWhatHasArrived(t *testing.T) {
	t.Parallel()
	b := frozen(Config{Limit: 1 << 20})
	var all []*reading
	for range 100 { // that promise a hundred times what there is
		r := begin(b, 1<<20, false)
		r.send(100)
		all = append(all, r)
	}
	if used := b.Stats().Verified; used != 100*firstKnown {
		t.Errorf("they take %d bytes", used)
	}
	for _, r := range all {
		close(r.ended)
		if err := <-r.done; err == nil {
			t.Error("a body without its end was taken")
		}
		r.hold.Release()
	}
	if used := b.Stats().Verified; used != 0 {
		t.Errorf("%d bytes are left", used)
	}
}

func TestBodiesBeyondTheBudgetAreRefusedAndTheOthersStay(t *testing.T) {
	t.Parallel()
	b := NewBudget(Config{Limit: 1 << 20})
	var first, second, third Hold
	if _, err := read(b, &first, bytes.NewReader(make([]byte, 500_000)), 500_000, 1<<20); err != nil {
		t.Fatal(err)
	}
	if _, err := read(b, &second, bytes.NewReader(make([]byte, 600_000)), 600_000, 1<<20); !errors.Is(err, ErrFull) {
		t.Fatalf("got %v", err)
	}
	second.Release()
	if s := b.Stats(); s.Verified != 500_000 || s.Full != 1 {
		t.Errorf("got %+v", s)
	}
	first.Release()
	if _, err := read(b, &third, bytes.NewReader(make([]byte, 500_000)), 500_000, 1<<20); err != nil {
		t.Errorf("got %v", err)
	}
	if err := third.TakeDecoded(bytes.Repeat([]byte(","), 600_000)); err != nil {
		t.Errorf("decoding the only body there is: %v", err)
	}
	third.Release()
}

func TestUnverifiedBodiesTakeTheirShareOnly(t *testing.T) {
	t.Parallel()
	b := frozen(Config{Limit: 8 << 20, Unverified: 64 << 10})
	share := b.Stats().UnverifiedLimit
	if share != 1<<20 {
		t.Fatalf("the share is %d", share)
	}
	var waiting []*reading
	for range share / (perUnverified + firstKnown) {
		r := begin(b, 1<<20, true)
		<-r.asked
		r.asked <- struct{}{}
		waiting = append(waiting, r)
	}
	late := begin(b, 100_000, true)
	if err := <-late.done; !errors.Is(err, ErrFull) {
		t.Errorf("one more got %v", err)
	}
	late.hold.Release()
	known := begin(b, 100_000, false)
	known.send(100_000 - 1)
	known.parts <- make([]byte, 1)
	if err := <-known.done; err != nil {
		t.Errorf("a body of somebody who is known got %v", err)
	}
	// Who is verified leaves the share.
	one := waiting[0]
	<-one.asked
	one.parts <- make([]byte, firstKnown)
	before := b.Stats().Unverified
	close(one.ended)
	if err := <-one.done; err == nil {
		t.Error("a body without its end was taken")
	}
	one.hold.Verified()
	if after := b.Stats(); after.Unverified >= before || after.UnverifiedFull != 1 || after.Full != 0 {
		t.Errorf("got %+v, of %d bytes before", after, before)
	}
	for _, r := range append(waiting, known) {
		if r != one && r != known {
			close(r.ended)
			if err := <-r.done; err == nil {
				t.Error("a body without its end was taken")
			}
		}
		r.hold.Release()
	}
	if s := b.Stats(); s.Verified != 0 || s.Unverified != 0 {
		t.Errorf("got %+v", s)
	}
}

func TestSlowBodyGivesWayToOthersThatNeedItsMemory(t *testing.T) {
	t.Parallel()
	for _, isUnverified := range []bool{false, true} {
		b := NewBudget(Config{Limit: 1 << 20, Unverified: 256 << 10})
		now := time.Now()
		b.now = func() time.Time { return now } // nothing reads it meanwhile
		slow := begin(b, 200_000, isUnverified)
		slow.send(100_000)
		if isUnverified && b.Stats().Unverified < 100_000 {
			t.Errorf("got %+v", b.Stats())
		}
		now = now.Add(time.Minute)
		fast := begin(b, 1<<20, false)
		<-fast.asked
		fast.parts <- make([]byte, 1<<20)
		// It needs all there is, and a copy as it grows.
		if err := <-fast.done; !errors.Is(err, ErrFull) {
			t.Errorf("got %v", err)
		}
		fast.hold.Release()
		if err := <-slow.done; !errors.Is(err, ErrTooSlow) || !slow.hold.IsCutOff() {
			t.Errorf("the slow one got %v", err)
		}
		if s := b.Stats(); s.Verified != 0 || s.Unverified != 0 || s.TooSlow != 1 {
			t.Errorf("got %+v", s)
		}
		slow.hold.Release()
		if s := b.Stats(); s.Verified != 0 || s.Unverified != 0 {
			t.Errorf("got %+v", s)
		}
	}
}

func TestBodyThatIsReadGivesWayToNobody(t *testing.T) {
	t.Parallel()
	b := NewBudget(Config{Limit: 1 << 20})
	now := time.Now()
	b.now = func() time.Time { return now }
	var done, next Hold
	if _, err := read(b, &done, iotest.OneByteReader(bytes.NewReader(make([]byte, 500_000))), 500_000, 1<<20); err != nil {
		t.Fatal(err)
	}
	now = now.Add(time.Hour)
	if _, err := read(b, &next, bytes.NewReader(make([]byte, 600_000)), 600_000, 1<<20); !errors.Is(err, ErrFull) {
		t.Errorf("got %v", err)
	}
}

func BenchmarkRead(b *testing.B) {
	for _, n := range []int{200, 8 << 20} {
		b.Run(http.StatusText(n)+strings.Repeat("x", n>>20), func(b *testing.B) {
			sent := make([]byte, n)
			budget := NewBudget(Config{})
			b.ReportAllocs()
			for b.Loop() {
				var h Hold
				r := &http.Request{Body: io.NopCloser(bytes.NewReader(sent)), ContentLength: int64(n)}
				if _, err := h.Read(budget, nil, r, 8<<20); err != nil {
					b.Fatal(err)
				}
				h.Release()
			}
		})
	}
}
