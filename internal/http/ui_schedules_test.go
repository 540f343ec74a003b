package http

import (
	"encoding/json"
	"html"
	"net/url"
	"regexp"
	"strings"
	"testing"
)

// scheduleForm is the form of a schedule that comes at 7:30 on working days.
func scheduleForm(changes ...string) url.Values {
	form := url.Values{
		"key": {"nonce"}, "name": {"Report"}, "queue": {"reports"}, "topic": {""}, "type": {"daily"}, "priority": {"0"}, "event": {`{"n":12345678901234567890}`},
		"cron": {"30 7 * * 1-5"}, "rrule": {""}, "at": {""}, "timezone": {"Asia/Kolkata"}, "starts": {""}, "ends": {""}, "count": {""},
		"misfire": {"once"}, "gap": {"forward"}, "overlap": {"first"}, "leap": {"feb28"},
	}
	for i := 0; i+1 < len(changes); i += 2 {
		form.Set(changes[i], changes[i+1])
	}
	return form
}

func TestSchedulesAreMadeByForms(t *testing.T) {
	t.Parallel()
	h := setup(t)
	b := h.browse(t)
	b.get("schedules").want(200).says("No schedule is here", "New schedule")
	b.get("schedules/new?queue=mail").want(200).says(`value="mail"`, "Preview the next runs", "Create the schedule")

	tried := b.post("schedules/preview", scheduleForm()).want(200).says("nothing is stored yet", "UTC&#43;05:30", "07:30:00", `02:00:00<span class="utc"> UTC`, `value="30 7 * * 1-5"`, `value="nonce"`, "12345678901234567890")
	if n := strings.Count(tried.body, "UTC&#43;05:30"); n != 10 {
		t.Errorf("the preview has %d runs, want 10", n)
	}
	b.get("schedules").want(200).says("No schedule is here")

	b.follow("schedules/create", scheduleForm()).want(200).says("The schedule is stored", "<h1>Report</h1>", "cron 30 7 * * 1-5", "Asia/Kolkata", "UTC&#43;05:30", "12345678901234567890", "It has not run yet")
	b.follow("schedules/create", scheduleForm()).want(200) // sent twice, and stored once
	b.follow("schedules/create", scheduleForm("name", "Other")).want(200).says("<h1>Other</h1>")
	if got := decode[pageOfMany](h.call("GET", "/schedules", "").want(200)).Schedules; len(got) != 2 {
		t.Errorf("there are %d schedules, want 2", len(got))
	}

	for field, bad := range map[string]struct {
		status      int
		value, says string
	}{
		"event": {400, "{", "must be JSON"}, "priority": {400, "x", "must be an integer"}, "count": {400, "1.5", "must be an integer"},
		"cron": {422, "61 * * * *", "Validation failed"}, "timezone": {422, "Nowhere", "Validation failed"}, "topic": {422, "a.b", "does not go with a topic"},
		"starts": {422, "soon", "must be a local date-time"}, "gap": {422, "x", "Validation failed"}, "queue": {422, "a b", "Validation failed"},
	} {
		for _, call := range []string{"create", "preview"} {
			page := b.post("schedules/"+call, scheduleForm(field, bad.value)).want(bad.status).says(bad.says, `value="Report"`)
			if field != "event" && field != "gap" {
				page.says(`value="` + bad.value + `"`)
			}
		}
	}
	b.post("schedules/create", scheduleForm("event", "")).want(400).says("is missing")
}

func TestSchedulesAreChangedByForms(t *testing.T) {
	t.Parallel()
	h := setup(t)
	b := h.browse(t)
	_, at := h.createSchedule(`{"name":"Report","queue":"reports","type":"daily","event":{"n":12345678901234567890},"cron":"30 7 * * 1-5","timezone":"Asia/Kolkata"}`)
	at = strings.TrimPrefix(at, "/")
	b.get(at+"/change").want(200).says("Change Report", `name="version" value="1"`, `value="30 7 * * 1-5"`, "12345678901234567890")
	form := func(changes ...string) url.Values {
		f := scheduleForm(changes...)
		f.Del("key")
		if !f.Has("version") {
			f.Set("version", "1")
		}
		return f
	}
	b.follow(at+"/change", form()).want(200).says("Nothing was entered")
	b.post(at+"/preview", form("cron", "0 9 * * *")).want(200).says("nothing is stored yet", "09:00:00", "Store the change")
	if s := decode[seenSchedule](h.call("GET", "/"+at, "").want(200)); s.Version != 1 || s.Cron != "30 7 * * 1-5" {
		t.Errorf("a preview has changed the schedule: %+v", s)
	}
	b.follow(at+"/change", form("cron", "", "rrule", "FREQ=DAILY", "at", "2030-01-01T09:00:00", "count", "3", "name", "", "queue", "", "topic", "report.due")).want(200).
		says("The change is stored", "FREQ=DAILY", "begins at 2030-01-01 09:00:00", "at most 3 times", "report.due")
	if s := decode[seenSchedule](h.call("GET", "/"+at, "").want(200)); s.Name != "" || s.Topic != "report.due" || s.Queue != "" || s.Count != 3 || s.Version != 2 {
		t.Errorf("the schedule is %+v", s)
	}
	b.post(at+"/change", form("name", "Late")).want(412).says("Precondition failed", `value="Late"`)
	b.post(at+"/change", form("version", "2", "queue", "", "topic", "")).want(400).says("give a queue, or a topic")
	b.follow(at+"/change", form("version", "2", "cron", "", "rrule", "FREQ=DAILY", "at", "2030-01-01T09:00:00", "topic", "", "queue", "mail", "type", "")).want(200).says("queues/mail", "type</dt><dd>none")
	b.post(at+"/change", form("version", "3", "cron", "x")).want(422).says("Validation failed", `value="x"`)
}

func TestSchedulesAreRunPausedAndDeletedByButtons(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.placeOn(0, "reports", "default")
	b := h.browse(t)
	_, at := h.createSchedule(`{"name":"Report","queue":"reports","event":{},"cron":"0 0 1 1 *","timezone":"America/New_York"}`)
	_, to := h.createSchedule(`{"topic":"report.due","event":{},"at":"2030-01-01T00:00:00Z"}`)
	at, to = strings.TrimPrefix(at, "/"), strings.TrimPrefix(to, "/")
	b.follow(at+"/pause", nil).want(200).says("The schedule is paused", `<span class="tag paused">`, "/resume")
	b.follow(at+"/resume", nil).want(200).says("no longer paused", `<span class="tag active">`)
	page := b.follow(at+"/run", nil).want(200).says("has made the event", "by hand", `<span class="tag pending">`)
	event := regexp.MustCompile(`events/(\d+)`).FindStringSubmatch(page.body)
	if event == nil {
		t.Fatalf("no link to the event: %s", page.body)
	}
	b.get("schedules?queue=reports").want(200).says(`<td class="text"><span class="tag pending">pending</span> <time`, "by hand")
	b.follow(to+"/run", nil).want(200).says("has published now", `<span class="tag published">`, "topics/report.due")
	b.get(at+"/delete").want(200).says("Delete Report?", "1 event of its latest 1 run", `name="version" value="3"`)
	b.post(at+"/delete", url.Values{"version": {"1"}}).want(412).says("Precondition failed")
	b.follow(at+"/delete", url.Values{"version": {"3"}}).want(200).says("The schedule is deleted", `<span class="tag cancelled">`).saysNot("Run now", "Delete…")
	if got := h.call("GET", "/events/"+event[1], "").want(200).body; !strings.Contains(got, `"outcome":"cancelled"`) {
		t.Errorf("the event of a deleted schedule is %s", got)
	}
	b.post(at+"/resume", nil).want(409).says("role=\"alert\"")

	b.get("schedules?status=cancelled").want(200).says("Report").saysNot("Schedule 2")
	b.get("schedules?order=next").want(200).says("Schedule 2").saysNot("Report")
	b.get("schedules?due_before=2029-01-01T00:00").want(200).says("that the filter lets through")
	b.get("schedules?queue=reports").want(200).says("Report").saysNot("Schedule 2")
	b.get("schedules?status=none").want(400).says("role=\"alert\"")
	b.get("schedules?due_before=x").want(400).says("role=\"alert\"")
	b.get("schedules?cursor=x").want(400).says("role=\"alert\"")
	b.get(at + "?runs=x").want(400).says("role=\"alert\"")
	for _, nothing := range []string{"schedules/99", "schedules/0", "schedules/x", "schedules/99999999999999999999", "schedules/99/change", "schedules/99/delete"} {
		b.get(nothing).want(404)
	}
	b.post("schedules/99/pause", nil).want(404)
}

func TestPagesOfSchedulesShowWhatUsersEnterAsText(t *testing.T) {
	t.Parallel()
	h := setup(t)
	b := h.browse(t)
	const evil = `<script>alert(1)</script>`
	h.call("PUT", "/owners/ada", `{"timezone":"UTC","attributes":{"a":"`+evil+`"}}`).want(201)
	_, at := h.createSchedule(`{"name":"` + evil + `","owner":"ada","queue":"mail","type":"` + evil + `","event":{"a":"` + evil + `"},"cron":"@daily"}`)
	at = strings.TrimPrefix(at, "/")
	for _, page := range []string{"schedules", at, at + "/change", at + "/delete", "owners", "schedules?owner=ada", "schedules/new?queue=" + url.QueryEscape(evil)} {
		b.get(page).want(200).saysNot("<script>alert", "style=").says("&lt;script&gt;")
	}
	b.post("schedules/preview", scheduleForm("name", evil, "type", evil)).want(200).saysNot("<script>alert")
}

// TestLongPayloadsAreKeptByForms changes the name of a schedule whose payload is longer than what pages show of it.
func TestLongPayloadsAreKeptByForms(t *testing.T) {
	t.Parallel()
	h := setup(t)
	b := h.browse(t)
	long := `{"text":"` + strings.Repeat("y", 100_000) + `","the end":"here"}`
	_, at := h.createSchedule(`{"name":"Report","queue":"reports","event":` + long + `,"cron":"@daily","timezone":"UTC"}`)
	at = strings.TrimPrefix(at, "/")
	b.get(at).want(200).says("the first 64 KiB are shown").saysNot("here&#34;")
	page := b.get(at + "/change").want(200)
	_, entered, _ := strings.Cut(page.body, `spellcheck="false">`)
	entered, _, _ = strings.Cut(entered, "</textarea>")
	entered = html.UnescapeString(entered)
	if !json.Valid([]byte(entered)) || !strings.Contains(entered, `"here"`) {
		t.Fatalf("the form has %d bytes of the payload", len(entered))
	}
	b.follow(at+"/change", scheduleForm("version", "1", "event", entered, "name", "Other", "type", "", "cron", "@daily", "timezone", "UTC")).want(200).says("The change is stored")
	if got := h.call("GET", "/"+at, "").want(200).body; !strings.Contains(got, `"here"`) || !strings.Contains(got, `"Other"`) {
		t.Error("the schedule is not as it was entered")
	}
}

// TestPagesSayWhereTheClocksChange looks at a schedule across the end of summer time.
func TestPagesSayWhereTheClocksChange(t *testing.T) {
	t.Parallel()
	h := setup(t)
	b := h.browse(t)
	page := b.post("schedules/preview", scheduleForm("cron", "0 9 * 10,11 7", "timezone", "America/New_York", "starts", "2029-10-20T00:00:00")).want(200).says("UTC−04:00", "UTC−05:00")
	if n := strings.Count(page.body, "the clocks change"); n < 1 {
		t.Errorf("%d changes of the clocks are shown: %s", n, page.body)
	}
	b.post("schedules/preview", scheduleForm("cron", "", "at", "2031-03-09T02:30:00", "timezone", "America/New_York")).want(200).says("the clocks skip this local time", `07:30:00<span class="utc"> UTC`)
	b.post("schedules/preview", scheduleForm("cron", "", "at", "2031-11-02T01:30:00", "timezone", "America/New_York")).want(200).says("the clocks show this local time twice")
	_, at := h.createSchedule(`{"event":{},"at":"2031-03-09T02:30:00","timezone":"America/New_York"}`)
	b.get(strings.TrimPrefix(at, "/")).want(200).says("the clocks skip this local time")
}
