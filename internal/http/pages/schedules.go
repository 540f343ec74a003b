package pages

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/json"
	"net/url"
	"strconv"

	"github.com/queued/queued/client"
	"github.com/queued/queued/internal/ui"
)

// endOfTime is later than any run: what is due before it is all that has a next run.
const endOfTime = "9999-12-31T23:59:59Z"

// listSchedules is the page of all schedules, or of those that a filter lets through, by id or by their next runs.
func listSchedules(v *visit) (view, error) {
	if order := v.query("order"); order != "" && order != "next" {
		return view{}, invalid("order", "must be next, or left out")
	}
	shown := ui.Schedules{Filter: v.r.URL.Query(), IsBySoon: v.query("order") == "next" || v.query("due_before") != ""}
	filter := pick(shown.Filter, []string{"owner", "queue", "status"})
	if shown.IsBySoon {
		filter.Set("due_before", cmp.Or(inUTC(v.query("due_before")), endOfTime))
	}
	schedules, next, err := pageOf[client.Schedule](v, "/schedules", "schedules", filter, pageSize)
	if err != nil {
		return view{}, err
	}
	shown.Schedules, shown.Pager = schedules, v.pager(next)
	return view{name: "schedules", title: "Schedules", nav: "schedules", isLive: true, body: shown}, nil
}

// showSchedule is the page of one schedule.
func showSchedule(v *visit) (view, error) {
	s, err := v.schedule()
	if err != nil {
		return view{}, err
	}
	query := url.Values{"n": {cmp.Or(v.query("runs"), "10")}, "limit": {"20"}}
	setIf(query, "cursor", v.query("cursor"))
	var answer struct {
		Occurrences []client.Occurrence `json:"occurrences"`
		Upcoming    []client.Instant    `json:"upcoming"`
		Next        *string             `json:"next"`
	}
	if _, err := v.api.Do(v.r.Context(), client.Request{Path: "/schedules/" + v.parameter("id") + "/occurrences", Query: query}, &answer); err != nil {
		return view{}, err
	}
	asked, _ := strconv.Atoi(query.Get("n")) // the API has refused what is no number
	shown := &ui.Schedule{
		Schedule: s, Hidden: v.h.cfg.HidePayloads, Runs: ui.Runs(answer.Upcoming), Asked: asked, Occurrences: answer.Occurrences, Pager: v.pager(answer.Next),
	}
	return view{name: "schedule", title: ui.ScheduleName(s), nav: "schedules", isLive: true, body: shown}, nil
}

// schedule returns the schedule that the visit is about.
func (v *visit) schedule() (s client.Schedule, err error) {
	id, err := v.id()
	if err != nil {
		return s, err
	}
	return v.api.GetSchedule(v.r.Context(), id)
}

// newSchedule is the form of a new schedule. The query may say where it goes.
func newSchedule(v *visit) (view, error) {
	form := &ui.ScheduleForm{Key: rand.Text(), Hidden: false}
	form.Queue, form.Topic, form.Owner = v.query("queue"), v.query("topic"), v.query("owner")
	form.Payload = json.RawMessage("{}")
	return view{name: "schedule-form", title: "New schedule", nav: "schedules", body: form}, nil
}

// previewNewSchedule is the form of a new schedule with its next runs.
func previewNewSchedule(v *visit) (view, error) { return v.preview(newSchedule) }

// changeSchedule is the form of a change to a schedule.
func changeSchedule(v *visit) (view, error) {
	s, err := v.schedule()
	if err != nil {
		return view{}, err
	}
	return view{name: "schedule-form", title: "Change " + ui.ScheduleName(s), nav: "schedules", body: &ui.ScheduleForm{Schedule: s, Hidden: v.h.cfg.HidePayloads}}, nil
}

// previewChange is the form of a change to a schedule with the runs that it would have next.
func previewChange(v *visit) (view, error) { return v.preview(changeSchedule) }

// preview returns the page of a form with the next runs of the schedule that was entered.
func (v *visit) preview(form page) (view, error) {
	shown, err := form(v)
	if err != nil {
		return view{}, err
	}
	f, _ := shown.body.(*ui.ScheduleForm)
	spec, err := v.enteredSchedule(f.Payload)
	if err != nil {
		return view{}, err
	}
	spec.Owner = cmp.Or(spec.Owner, f.Owner)
	instants, err := v.api.PreviewSchedule(v.r.Context(), client.PreviewParams{NewSchedule: spec, N: 10})
	f.Runs, f.IsTried = ui.Runs(instants), true
	return shown, err
}

// enteredSchedule returns the schedule that was entered. kept is its payload if none was entered.
func (v *visit) enteredSchedule(kept json.RawMessage) (client.NewSchedule, error) {
	f := v.form.Get
	s := client.NewSchedule{
		Payload: kept, Name: f("name"), Owner: f("owner"), Queue: f("queue"), Topic: f("topic"), Type: f("type"), Group: f("group"), At: f("at"), RRule: f("rrule"), Cron: f("cron"),
		Timezone: f("timezone"), Starts: f("starts"), Ends: f("ends"), Gap: f("gap"), Overlap: f("overlap"), Leap: f("leap"), Misfire: f("misfire"),
	}
	if f("event") != "" {
		payload, err := v.json("event")
		if err != nil {
			return s, err
		}
		s.Payload = payload
	}
	priority, err := v.number("priority", 32)
	if err != nil {
		return s, err
	}
	count, err := v.number("count", 32)
	if err != nil {
		return s, err
	}
	s.Priority, s.Count = int32(priority), int(count)
	return s, nil
}

// createSchedule stores a new schedule.
func createSchedule(v *visit) (string, error) {
	s, err := v.enteredSchedule(nil)
	if err != nil {
		return "", err
	}
	if v.form.Get("event") == "" {
		return "", invalid("event", `is missing: an object such as {"order": 17}, or {}`)
	}
	s.IdempotencyKey = v.idempotencyKey()
	made, err := v.api.CreateSchedule(v.r.Context(), s)
	return did("schedules/"+strconv.FormatInt(made.ID, 10), "schedule.created", ""), err
}

// storeChange changes the fields of a schedule that are not as they were.
func storeChange(v *visit) (string, error) {
	s, err := v.schedule()
	if err != nil {
		return "", err
	}
	version, err := v.number("version", 64)
	if err != nil {
		return "", err
	}
	patch, err := v.schedulePatch(&s)
	if err != nil {
		return "", err
	}
	if len(patch) == 0 {
		return did(v.schedulePath(), "schedule.unchanged", ""), nil
	}
	_, err = v.api.PatchSchedule(v.r.Context(), s.ID, version, patch)
	return did(v.schedulePath(), "schedule.changed", ""), err
}

// schedulePatch returns the fields that were entered and are not as in s.
func (v *visit) schedulePatch(s *client.Schedule) (map[string]any, error) {
	patch := make(map[string]any)
	if v.form.Has("queue") && v.form.Get("queue") == "" && v.form.Get("topic") == "" {
		return nil, invalid("queue", "is missing: give a queue, or a topic")
	}
	for field, is := range map[string]string{
		"name": s.Name, "queue": s.Queue, "topic": s.Topic, "type": s.Type, "group": s.Group, "at": s.At, "rrule": s.RRule, "cron": s.Cron, "timezone": s.Timezone,
		"starts": s.Starts, "ends": s.Ends, "gap": s.Gap, "overlap": s.Overlap, "leap": s.Leap, "misfire": s.Misfire,
	} {
		switch entered := v.form.Get(field); {
		case !v.form.Has(field) || entered == is:
		case entered != "":
			patch[field] = entered
		case field == "queue": // a topic takes its place
		default:
			patch[field] = nil
		}
	}
	priority, err := v.number("priority", 32)
	if err != nil {
		return nil, err
	}
	if v.form.Has("priority") && priority != int64(s.Priority) {
		patch["priority"] = priority
	}
	count, err := v.number("count", 32)
	switch {
	case err != nil:
		return nil, err
	case !v.form.Has("count") || count == int64(s.Count):
	case v.form.Get("count") == "":
		patch["count"] = nil
	default:
		patch["count"] = count
	}
	if v.form.Get("event") != "" {
		payload, err := v.json("event")
		if err != nil {
			return nil, err
		}
		if !isSameJSON(payload, s.Payload) {
			patch["event"] = payload
		}
	}
	return patch, nil
}

// isSameJSON reports whether two texts are the same JSON, but for white space.
func isSameJSON(a, b json.RawMessage) bool {
	var one, other bytes.Buffer
	json.HTMLEscape(&one, a)
	json.HTMLEscape(&other, b)
	var compact, otherCompact bytes.Buffer
	return json.Compact(&compact, one.Bytes()) == nil && json.Compact(&otherCompact, other.Bytes()) == nil && bytes.Equal(compact.Bytes(), otherCompact.Bytes())
}

func pauseSchedule(v *visit) (string, error) {
	id, err := v.id()
	if err == nil {
		_, err = v.api.PauseSchedule(v.r.Context(), id)
	}
	return did(v.schedulePath(), "schedule.paused", ""), err
}

func resumeSchedule(v *visit) (string, error) {
	id, err := v.id()
	if err == nil {
		_, err = v.api.ResumeSchedule(v.r.Context(), id)
	}
	return did(v.schedulePath(), "schedule.resumed", ""), err
}

// runSchedule has a schedule run once more, now.
func runSchedule(v *visit) (string, error) {
	id, err := v.id()
	if err != nil {
		return "", err
	}
	made, err := v.api.RunSchedule(v.r.Context(), id)
	if made.EventID == 0 {
		return did(v.schedulePath(), "schedule.published", ""), err
	}
	return did(v.schedulePath(), "schedule.run", strconv.FormatInt(made.EventID, 10)), err
}

// confirmDelete asks before a schedule is deleted.
func confirmDelete(v *visit) (view, error) {
	s, err := v.schedule()
	if err != nil {
		return view{}, err
	}
	latest := url.Values{"n": {"0"}, "limit": {"100"}}
	occurrences, _, err := listOf[client.Occurrence](v.r.Context(), v.api, "/schedules/"+v.parameter("id")+"/occurrences", "occurrences", latest)
	if err != nil {
		return view{}, err
	}
	pending := 0
	for i := range occurrences {
		if occurrences[i].Status == "pending" {
			pending++
		}
	}
	text := "It does not run again, and stays to be looked at, as cancelled. This cannot be undone. Its events that nobody has claimed yet are cancelled with it: " +
		ui.Count(pending, "event", "events") + " of its latest " + ui.Count(len(occurrences), "run", "runs") + "."
	return view{name: "confirm", title: "Delete " + ui.ScheduleName(s), nav: "schedules", body: ui.Confirm{
		Question: "Delete " + ui.ScheduleName(s) + "?", Consequence: text, Button: "Delete", Action: v.schedulePath() + "/delete", Back: v.schedulePath(),
		Fields: []ui.Hidden{{Name: "version", Value: strconv.FormatInt(s.Version, 10)}},
	}}, nil
}

// deleteSchedule cancels a schedule, if it is still the version that the question was about.
func deleteSchedule(v *visit) (string, error) {
	id, err := v.id()
	if err != nil {
		return "", err
	}
	version, err := v.number("version", 64)
	if err != nil {
		return "", err
	}
	return did(v.schedulePath(), "schedule.deleted", ""), v.api.DeleteSchedule(v.r.Context(), id, version)
}

// schedulePath is the path of the page of the schedule that the visit is about.
func (v *visit) schedulePath() string { return "schedules/" + url.PathEscape(v.parameter("id")) }

// listOwners is the page of all owners.
func listOwners(v *visit) (view, error) {
	owners, next, err := pageOf[client.Owner](v, "/owners", "owners", nil, pageSize)
	if err != nil {
		return view{}, err
	}
	return view{name: "owners", title: "Owners", nav: "schedules", isLive: true, body: ui.Owners{Owners: owners, Pager: v.pager(next)}}, nil
}
