package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/queued/queued/internal/pgtest"
)

// birthdays is the directory of the example in docs/schedules.md: a worker that sends greetings and their receiver.
const birthdays = "../../examples/birthdays"

// leapYear is a year that has every day.
const leapYear = "1988"

// greeted is the schedule of a yearly greeting in the API.
type greeted struct {
	ID        int64     `json:"id"`
	Status    string    `json:"status"`
	Fired     int       `json:"fired"`
	NextLocal string    `json:"next_local"`
	NextAt    time.Time `json:"next_at"`
}

// greeting is an occurrence of the schedule.
type greeting struct {
	NominalAt     string `json:"nominal_at"`
	Status        string `json:"status"`
	EventID       int64  `json:"event_id"`
	FailureReason string `json:"failure_reason"`
	RetryCount    int    `json:"retry_count"`
}

// greet creates a schedule for every birthday, a civil time in the zone of the owner.
func (p *program) greet(owner, first, last, birthday string) greeted {
	p.t.Helper()
	body := fmt.Sprintf(`{"owner":%q,"queue":"greetings","event":{"first_name":%q,"last_name":%q},"at":%q,"rrule":"FREQ=YEARLY"}`, owner, first, last, birthday)
	return into[greeted](p.t, p.want(http.StatusCreated, http.MethodPost, "/schedules", body))
}

func (p *program) liveIn(owner, zone string) {
	p.t.Helper()
	got, err := p.send(http.MethodPut, "/owners/"+owner, fmt.Sprintf(`{"timezone":%q}`, zone))
	if err != nil || got.status != http.StatusOK && got.status != http.StatusCreated {
		p.t.Fatalf("moving %s to %s: %v, %d %s", owner, zone, err, got.status, got.body)
	}
}

func (p *program) greeted(id int64) greeted {
	p.t.Helper()
	return into[greeted](p.t, p.want(http.StatusOK, http.MethodGet, fmt.Sprintf("/schedules/%d", id), ""))
}

func (p *program) greetings(id int64) []greeting {
	p.t.Helper()
	type page struct{ Occurrences []greeting }
	return into[page](p.t, p.want(http.StatusOK, http.MethodGet, fmt.Sprintf("/schedules/%d/occurrences", id), "")).Occurrences
}

// becomes waits until the only occurrence of a schedule has a status, and returns it.
func (p *program) becomes(status string, id int64) (got greeting) {
	p.t.Helper()
	until(p.t, fmt.Sprintf("the greeting of schedule %d is %s", id, status), func() bool {
		all := p.greetings(id)
		if len(all) > 1 {
			p.t.Fatalf("there are several greetings: %+v", all)
		}
		if len(all) == 1 {
			got = all[0]
		}
		return got.Status == status
	})
	return got
}

func into[T any](t *testing.T, a answer) (v T) {
	t.Helper()
	if err := json.Unmarshal([]byte(a.body), &v); err != nil {
		t.Fatalf("%d %q: %v", a.status, a.body, err)
	}
	return v
}

// born returns a birthday in leapYear whose civil time is a moment from now in a zone.
func born(t *testing.T, zone string, moment time.Duration) string {
	t.Helper()
	there, err := time.LoadLocation(zone)
	if err != nil {
		t.Fatal(err)
	}
	return leapYear + time.Now().In(there).Add(moment+time.Second).Format("-01-02T15:04:05")
}

// startGreeters starts the receiver, which refuses greetings to the first name refused, and the worker.
func startGreeters(t *testing.T, p *program, refused string) (receiver *program) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "receiver")
	if out, err := exec.Command("go", "build", "-o", program, birthdays+"/receiver").CombinedOutput(); err != nil {
		t.Fatalf("building the receiver: %v\n%s", err, out)
	}
	receiver = startBeside(t, nil, program, "-listen", "127.0.0.1:0", "-refuse", refused)
	const said = "taking greetings at "
	receiver.waitForLine(said, func(line string) bool {
		receiver.addr = strings.TrimPrefix(line, said)
		return strings.HasPrefix(line, said)
	})
	startBeside(t, []string{"QUEUED=http://" + p.addr, "RECEIVER=" + receiver.addr, "DELAY=10ms"}, "sh", birthdays+"/worker")
	return receiver
}

func congratulated(receiver *program, name string) int {
	return strings.Count(receiver.output(), "happy birthday, "+name+"!")
}

func TestYearlySchedulesFireOnceInEveryZone(t *testing.T) {
	t.Parallel()
	p := setup(t)
	receiver := startGreeters(t, p, "Grace")

	// Alan's birthday is hours away in his zone, and a moment away in the zone that he moves to.
	p.liveIn("alan", "Europe/London")
	alan := p.greet("alan", "Alan", "Turing", born(t, "Asia/Tokyo", 8*time.Second))
	if wait := time.Until(alan.NextAt); wait < 7*time.Hour {
		t.Errorf("in London it is %s until then", wait)
	}
	p.liveIn("ada", "Asia/Kolkata")
	ada := p.greet("ada", "Ada", "Lovelace", born(t, "Asia/Kolkata", 3*time.Second))
	p.liveIn("grace", "America/Phoenix")
	grace := p.greet("grace", "Grace", "Hopper", born(t, "America/Phoenix", 3*time.Second))
	p.liveIn("alan", "Asia/Tokyo")
	if moved := p.greeted(alan.ID); moved.NextLocal != alan.NextLocal || time.Until(moved.NextAt) > time.Minute {
		t.Errorf("moved to Tokyo, it is due %s at %s, and was %s", moved.NextLocal, moved.NextAt, alan.NextLocal)
	}

	for name, planned := range map[string]greeted{"Ada Lovelace": ada, "Alan Turing": alan} {
		receiver.waitForLine(name, func(line string) bool { return strings.Contains(line, "happy birthday, "+name+"!") })
		done := p.becomes("completed", planned.ID)
		if done.NominalAt != planned.NextLocal {
			t.Errorf("%s was greeted for %s, not for %s", name, done.NominalAt, planned.NextLocal)
		}
		if next := p.greeted(planned.ID); next.Fired != 1 || next.Status != "active" || next.NextLocal[:4] <= planned.NextLocal[:4] || next.NextAt.Before(time.Now()) {
			t.Errorf("%s is greeted next at %s, %s; %s after %d", name, next.NextLocal, next.NextAt, next.Status, next.Fired)
		}
	}

	failed := p.becomes("failed", grace.ID)
	if failed.FailureReason != "the receiver answered 503" || failed.RetryCount != 2 {
		t.Errorf("that nobody greeted Grace is on record as %+v", failed)
	}
	if next := p.greeted(grace.ID); next.Status != "active" || next.NextLocal[:4] <= grace.NextLocal[:4] {
		t.Errorf("after that, Grace is greeted at %s; %s", next.NextLocal, next.Status)
	}
	outcome := p.want(http.StatusOK, http.MethodGet, fmt.Sprintf("/events/%d", failed.EventID), "").decode(t)
	if outcome["outcome"] != "failed" || outcome["attempts"] != 3.0 {
		t.Errorf("history has %v", outcome)
	}

	// In London the civil time of the greeting in Tokyo is hours away.
	p.liveIn("alan", "Europe/London")
	if next := p.greeted(alan.ID); next.NextLocal[:4] <= alan.NextLocal[:4] {
		t.Errorf("back in London, Alan is greeted again at %s", next.NextLocal)
	}
	// A worker that was interrupted before its ack sends the greeting again.
	sent := p.becomes("completed", ada.ID)
	p.want(http.StatusCreated, http.MethodPost, fmt.Sprintf("/history/%d/requeue", sent.EventID), "")
	receiver.waitForLine("a repetition", func(line string) bool { return strings.HasPrefix(line, "had ") })
	p.becomes("completed", ada.ID)
	for name, want := range map[string]int{"Ada Lovelace": 1, "Alan Turing": 1, "Grace Hopper": 0} {
		if got := congratulated(receiver, name); got != want {
			t.Errorf("%s was congratulated %d times, want %d", name, got, want)
		}
	}
}

func TestOccurrenceMovesWithItsOwnersZone(t *testing.T) {
	t.Parallel()
	p := setup(t)
	soon := time.Now().UTC().AddDate(0, 0, 4)
	p.liveIn("mary", "Asia/Tokyo")
	mary := p.greet("mary", "Mary", "Jackson", leapYear+soon.Format("-01-02")+"T09:00:00")
	local := soon.Format("2006-01-02") + "T09:00:00"
	for _, stay := range []struct {
		zone   string
		offset time.Duration
	}{{"Asia/Tokyo", 9 * time.Hour}, {"America/Phoenix", -7 * time.Hour}, {"Asia/Kathmandu", 5*time.Hour + 45*time.Minute}} {
		p.liveIn("mary", stay.zone)
		got := p.greeted(mary.ID)
		want := time.Date(soon.Year(), soon.Month(), soon.Day(), 9, 0, 0, 0, time.UTC).Add(-stay.offset)
		if got.NextLocal != local || !got.NextAt.Equal(want) {
			t.Errorf("in %s the greeting is due at %s, %s; want %s", stay.zone, got.NextLocal, got.NextAt, want)
		}
	}
}

func TestYearlyScheduleOfALeapDayFiresEveryYear(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.liveIn("leap", "Europe/Berlin")
	for leap, want := range map[string]string{
		"feb28": "2096-02-29 2097-02-28 2098-02-28 2099-02-28 2100-02-28",
		"mar1":  "2096-02-29 2097-03-01 2098-03-01 2099-03-01 2100-03-01",
		"skip":  "2096-02-29 2104-02-29 2108-02-29 2112-02-29 2116-02-29",
	} {
		type instants struct{ Instants []struct{ Local, UTC string } }
		got := into[instants](t, p.want(http.StatusOK, http.MethodPost, "/schedules/preview", fmt.Sprintf(
			`{"owner":"leap","at":"1988-02-29T09:00:00","rrule":"FREQ=YEARLY","leap":%q,"after":"2096-01-01T00:00:00Z","n":5}`, leap)))
		var days []string
		for _, at := range got.Instants {
			day, clock, _ := strings.Cut(at.Local, "T")
			if clock != "09:00:00" || at.UTC != day+"T08:00:00Z" {
				t.Errorf("%s: the greeting is due at %s, %s", leap, at.Local, at.UTC)
			}
			days = append(days, day)
		}
		if said := strings.Join(days, " "); said != want {
			t.Errorf("%s: got %s, want %s", leap, said, want)
		}
	}
}

func TestMisfireGraceDecidesWhatIsLate(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for grace, want := range map[string]string{"1h": "completed pending", "1ms": "completed skipped"} {
		p := serve(t, nil, "QUEUED_DATABASE_URL="+db.ServiceURL, "QUEUED_MISFIRE_GRACE="+grace)
		made := into[greeted](t, p.want(http.StatusCreated, http.MethodPost, "/schedules", `{"event":{},"at":"2100-01-01T00:00:00Z","misfire":"skip"}`))
		stopped(p)
		if _, err := connect(t, db.URL).Exec(t.Context(), `update agent.schedule set at_instant = late.at, next_at = late.at, next_local = late.at at time zone 'UTC'
			from (select now() - interval '1 minute' as at) as late where id = $1`, made.ID); err != nil {
			t.Fatal(err)
		}
		p = serve(t, nil, "QUEUED_DATABASE_URL="+db.ServiceURL, "QUEUED_MISFIRE_GRACE="+grace)
		until(t, "what was missed is decided", func() bool { return p.greeted(made.ID).Status != "active" })
		got := p.greeted(made.ID).Status
		for _, o := range p.greetings(made.ID) {
			got += " " + o.Status
		}
		if got != want {
			t.Errorf("with a grace of %s, an occurrence that is a minute late leaves %q, want %q", grace, got, want)
		}
		stopped(p)
	}
}

// stopped stops a program as an operator does.
func stopped(p *program) {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != exitOK {
		p.t.Errorf("exit code %d", code)
	}
}
