package main

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/certtest"
	"github.com/queued/queued/internal/pgtest"
)

// keyOfCells is an admin key of every cell.
const keyOfCells = "an-admin-key-of-all-cells"

// A fleet is a gateway in front of two cells, each with a database of its own.
type fleet struct {
	*program
	cells   []*program
	command []string // that starts a gateway
}

// startFleet starts two cells, with more settings, and a gateway.
func startFleet(t *testing.T, settings ...string) *fleet {
	t.Helper()
	f := &fleet{}
	var list []string
	for number := range 2 {
		cell := serve(t, nil, append(settings, "QUEUED_DATABASE_URL="+pgtest.New(t).ServiceURL, fmt.Sprintf("QUEUED_CELL=%d", number), "QUEUED_API_KEY="+keyOfCells, "QUEUED_ACCESS_LOG=all",
			"QUEUED_SECRET_KEY=a-key-that-seals-secrets")...)
		cell.wantReady()
		f.cells = append(f.cells, cell)
		list = append(list, fmt.Sprintf("%d=http://%s", number, cell.addr))
	}
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte(keyOfCells+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f.command = []string{"gateway", "--cells", strings.Join(list, ","), "--key-file", path}
	f.program = serve(t, f.command, "QUEUED_ACCESS_LOG=all")
	f.wantReady()
	return f
}

// call sends one request with the key and returns its response, which must have the status.
func (f *fleet) call(status int, method, path, body string) answer {
	f.t.Helper()
	return f.want(status, method, path, body, "Authorization: Bearer "+keyOfCells)
}

// cellOf returns the cell of an id.
func cellOf(id any) int { return int(id.(float64)) >> 45 }

// queuesOn returns the names of a queue on each cell.
func (f *fleet) queuesOn() (names [2]string) {
	f.t.Helper()
	for i := 0; names[0] == "" || names[1] == ""; i++ {
		name := fmt.Sprint("queue-", i)
		names[cellOf(f.call(http.StatusCreated, http.MethodPost, "/events?queue="+name+"&delay=1h", `{}`).decode(f.t)["id"])] = name
	}
	return names
}

// claim claims one event.
func (f *fleet) claim(queue, wait string) map[string]any {
	f.t.Helper()
	events, _ := f.call(http.StatusOK, http.MethodPost, "/claim", fmt.Sprintf(`{"queue":%q,"wait":%q}`, queue, wait)).decode(f.t)["events"].([]any)
	if len(events) != 1 {
		f.t.Fatalf("claimed %d events of %s, want 1", len(events), queue)
	}
	event, _ := events[0].(map[string]any)
	return event
}

func TestGatewayPassesOnToTheCellsOfQueuesAndIDs(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	for number, queue := range f.queuesOn() {
		claimed := make(chan map[string]any, 1)
		go func() { claimed <- f.claim(queue, "60s") }()
		until(t, "the claim waits", func() bool {
			return strings.Contains(f.call(http.StatusOK, http.MethodGet, "/metrics", "").body, fmt.Sprintf("queued_gateway_calls{cell=\"%d\",kind=\"wait\"} 1", number))
		})
		inserted := f.call(http.StatusCreated, http.MethodPost, "/events?queue="+queue, `{"n":1}`).decode(t)
		event := <-claimed
		if event["id"] != inserted["id"] || cellOf(event["id"]) != number {
			t.Fatalf("inserted %v, claimed %v, on cell %d", inserted, event, number)
		}
		path := fmt.Sprintf("/events/%.0f", event["id"])
		f.call(http.StatusOK, http.MethodPost, path+"/extend", fmt.Sprintf(`{"receipt":%q,"invisible_for":"1m"}`, event["receipt"]))
		f.call(http.StatusOK, http.MethodPost, path+"/nack", fmt.Sprintf(`{"receipt":%q,"delay":"0s"}`, event["receipt"]))
		event = f.claim(queue, "10s")
		f.call(http.StatusNoContent, http.MethodDelete, path+"?receipt="+url.QueryEscape(event["receipt"].(string)), "")
		if got := f.call(http.StatusOK, http.MethodGet, path, "").decode(t)["outcome"]; got != "done" {
			t.Errorf("the outcome is %v, want done", got)
		}
		if got := f.call(http.StatusOK, http.MethodGet, "/history?queue="+queue, "").decode(t)["events"].([]any); len(got) != 1 {
			t.Errorf("%d events in the history of %s", len(got), queue)
		}
	}
	for _, key := range []string{"X-Worker: none", "Authorization: Bearer wrong"} {
		got := f.want(http.StatusUnauthorized, http.MethodPost, "/events?queue=other", `{}`, key, "X-Request-Id: of-a-stranger").decode(t)
		if got["request_id"] != "of-a-stranger" {
			t.Errorf("a stranger got %v", got)
		}
	}
	f.waitForLine("the request of the stranger", func(line string) bool { return strings.Contains(line, "of-a-stranger") })
	if got := f.call(http.StatusConflict, http.MethodGet, "/queues", "").decode(t); fmt.Sprint(got["cells"]) != "[0 1]" {
		t.Errorf("the list of queues: %v", got)
	}
	if got := f.call(http.StatusOK, http.MethodGet, "/cells/1/queues", "").decode(t); len(got["queues"].([]any)) != 1 {
		t.Errorf("the list of queues of cell 1: %v", got)
	}
	f.signal(syscall.SIGTERM)
	if code := f.wait(); code != exitOK {
		t.Errorf("exit code %d after SIGTERM", code)
	}
}

func TestGatewayPassesStreamsOnAndEndsThemWhenItStops(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+f.addr+"/stream?topic=a.b", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+keyOfCells)
	req.Header.Set("Accept", "text/event-stream")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewScanner(resp.Body)
	f.call(http.StatusCreated, http.MethodPost, "/topics/a.b", `{"hello":"stream"}`)
	for lines.Scan() {
		if strings.Contains(lines.Text(), "hello") {
			break
		}
	}
	f.signal(syscall.SIGTERM)
	for lines.Scan() {
		continue
	}
	if lines.Err() != nil {
		t.Errorf("the stream ended with %v", lines.Err())
	}
	if code := f.wait(); code != exitOK {
		t.Errorf("exit code %d after SIGTERM", code)
	}
}

func TestGatewayGoesOnWithoutACellThatWasKilled(t *testing.T) {
	t.Parallel()
	for killed := range 2 {
		t.Run(fmt.Sprint(killed), func(t *testing.T) {
			t.Parallel()
			f := startFleet(t)
			queues := f.queuesOn()
			f.cells[killed].signal(syscall.SIGKILL)
			f.cells[killed].wait()
			insert := "/events?queue=" + queues[killed]
			var got map[string]any
			until(t, "the gateway has noticed that all its connections are gone", func() bool { // a call that goes over one of them is answered that its outcome is unknown
				answered, err := f.send(http.MethodPost, insert, `{}`, "Authorization: Bearer "+keyOfCells)
				if err != nil || answered.status == http.StatusBadGateway {
					return false
				}
				got = answered.decode(t)
				return true
			})
			if got["code"] != "cell_unavailable" || got["cell"] != float64(killed) {
				t.Errorf("the killed cell: %v", got)
			}
			inserted := f.call(http.StatusCreated, http.MethodPost, "/events?queue="+queues[1-killed], `{}`).decode(t)
			if event := f.claim(queues[1-killed], "10s"); event["id"] != inserted["id"] {
				t.Errorf("inserted %v, claimed %v", inserted, event)
			}
			f.call(http.StatusOK, http.MethodGet, "/readyz", "")
			f.waitForLine("the cell is away", func(line string) bool {
				return strings.Contains(line, "the cell cannot be used") && strings.Contains(line, fmt.Sprintf(`"cell":%d`, killed))
			})
		})
	}
}

func TestGatewayPlacesAQueueThatHomeHadAtHome(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	for i := range 6 { // of which some would be placed on cell 1
		name := fmt.Sprint("before-", i)
		f.cells[0].want(http.StatusCreated, http.MethodPost, "/events?queue="+name, `{}`, "Authorization: Bearer "+keyOfCells)
		if id := f.claim(name, "5s")["id"]; cellOf(id) != 0 { // before it is placed
			t.Errorf("%s: claimed %v", name, id)
		}
		if id := f.call(http.StatusCreated, http.MethodPost, "/events?queue="+name, `{}`).decode(t)["id"]; cellOf(id) != 0 {
			t.Errorf("%s: inserted %v", name, id)
		}
	}
}

func TestGatewaySpeaksTLSAndHTTP2OnBothSides(t *testing.T) {
	t.Parallel()
	s := serveTLS(t, "QUEUED_TLS_CLIENT_CA=DIR/ca.pem", "QUEUED_API_KEY="+keyOfCells)
	cert, key := s.authority.Issue(certtest.Request{Name: "gateway"})
	file := func(name string) string { return filepath.Join(s.dir, name) }
	certtest.Write(t, s.dir, "gateway.pem", cert)
	certtest.Write(t, s.dir, "gateway-key.pem", key)
	environ := []string{
		"QUEUED_CELLS=0=https://" + s.addr, "QUEUED_KEY=" + keyOfCells, "QUEUED_CACERT=" + file("ca.pem"),
		"QUEUED_TLS_CERT=" + file("cert.pem"), "QUEUED_TLS_KEY=" + file("key.pem"), "QUEUED_TLS_CLIENT_CA=" + file("ca.pem"),
	}
	without := serve(t, []string{"gateway"}, environ...)
	without.waitForLine("the cell refuses a gateway without a certificate", func(line string) bool { return strings.Contains(line, "client_certificate_required") })
	front := *s
	front.program = serve(t, []string{"gateway"}, append(environ, "QUEUED_CERT="+file("gateway.pem"), "QUEUED_CLIENT_KEY="+file("gateway-key.pem"))...)
	client := front.client(t, s.authority)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+front.addr+"/events", strings.NewReader(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+keyOfCells)
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusCreated || resp.ProtoMajor != 2 {
		t.Errorf("answered %s with %s", resp.Status, resp.Proto)
	}
	resp = front.open(front.client(t, nil), http.MethodGet, "/topics", "")
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("a client without a certificate got %s", resp.Status)
	}
}

func TestKeysMadeThroughTheGatewayAreThoseOfEveryCell(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	made := f.call(http.StatusCreated, http.MethodPost, "/keys", `{"name":"reader","scopes":["read"]}`).decode(t)
	bearer := "Authorization: Bearer " + made["key"].(string)
	for _, cell := range f.cells {
		cell.want(http.StatusOK, http.MethodGet, "/queues", "", bearer)
	}
	f.call(http.StatusNoContent, http.MethodDelete, "/keys/"+made["id"].(string), "")
	for _, cell := range f.cells {
		cell.want(http.StatusUnauthorized, http.MethodGet, "/queues", "", bearer)
	}

	// What is changed at home itself reaches the other cell; a key of that cell alone stays there.
	madeAt := func(cell int) string {
		made := f.cells[cell].want(http.StatusCreated, http.MethodPost, "/keys", `{"name":"other","scopes":["read"]}`, "Authorization: Bearer "+keyOfCells).decode(t)
		return "Authorization: Bearer " + made["key"].(string)
	}
	atCell, atHome := madeAt(1), madeAt(0)
	until(t, "the key of home is on the other cell", func() bool {
		got, err := f.cells[1].send(http.MethodGet, "/queues", "", atHome)
		return err == nil && got.status == http.StatusOK
	})
	f.cells[1].want(http.StatusOK, http.MethodGet, "/queues", "", atCell)
	f.cells[0].want(http.StatusUnauthorized, http.MethodGet, "/queues", "", atCell)
}

func TestClaimThroughTheGatewayFindsAnEventOnAnotherCell(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	for number, queue := range f.queuesOn() {
		claimed := make(chan map[string]any, 1)
		go func() { claimed <- f.claim(queue, "60s") }()
		inserted := f.cells[1-number].want(http.StatusCreated, http.MethodPost, "/events?queue="+queue, `{}`, "Authorization: Bearer "+keyOfCells).decode(t)
		event := <-claimed
		if event["id"] != inserted["id"] {
			t.Errorf("inserted %v, claimed %v", inserted, event)
		}
		f.call(http.StatusNoContent, http.MethodDelete, fmt.Sprintf("/events/%.0f?receipt=%s", event["id"], url.QueryEscape(event["receipt"].(string))), "")
	}
}

func TestEventsOfHomeComeToTheCellOfTheirQueue(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	elsewhere := f.queuesOn()[1]
	put := func(path, body string) { t.Helper(); f.call(http.StatusOK, http.MethodPut, path, body) }
	take := func(about string) map[string]any {
		t.Helper()
		event := f.claim(elsewhere, "60s")
		if cellOf(event["id"]) != 1 {
			t.Fatalf("%s: %v is not on cell 1", about, event)
		}
		f.call(http.StatusNoContent, http.MethodDelete, fmt.Sprintf("/events/%.0f?receipt=%s", event["id"], url.QueryEscape(event["receipt"].(string))), "")
		return event
	}
	f.call(http.StatusCreated, http.MethodPut, "/subscriptions/s", fmt.Sprintf(`{"filters":[{"topics":["a.b"]}],"deliver":{"queue":%q,"type":"t","priority":3}}`, elsewhere))
	position := f.call(http.StatusCreated, http.MethodPost, "/topics/a.b?key=k7", `{"n":12345678901234567890}`).decode(t)["position"]
	event := take("a publication")
	publication, _ := event["publication"].(map[string]any)
	if publication["position"] != position || publication["subscription"] != "s" || publication["forward"] != nil || event["type"] != "t" || event["priority"] != 3.0 {
		t.Errorf("a publication came as %v", event)
	}
	f.call(http.StatusOK, http.MethodPost, "/subscriptions/s/replay", fmt.Sprintf(`{"from":%.0f}`, position.(float64)-1))
	if again := take("a replay")["publication"].(map[string]any)["position"]; again != position {
		t.Errorf("a replay has delivered the publication at %v, want %v", again, position)
	}
	f.call(http.StatusCreated, http.MethodPut, "/sources/hooks", fmt.Sprintf(`{"kind":"token","key":"{/hook}","queue":%q,"secrets":["one"],"keep_raw":"1h"}`, elsewhere))
	f.want(http.StatusOK, http.MethodPost, "/in/hooks", `{"hook":  1}`, "Authorization: Bearer one")
	f.want(http.StatusOK, http.MethodPost, "/in/hooks", `{"hook":  1}`, "Authorization: Bearer one") // once more
	event = take("a delivery to a source")
	if raw := f.call(http.StatusOK, http.MethodGet, fmt.Sprintf("/events/%.0f/raw", event["id"]), "").body; raw != `{"hook":  1}` {
		t.Errorf("the body of a delivery is %q", raw)
	}
	// A schedule was at home before its queue was moved.
	put("/queues/"+elsewhere+"/placement", `{"cells":[0]}`)
	until(t, "the gateway knows", func() bool {
		return cellOf(f.call(http.StatusCreated, http.MethodPost, "/events?queue="+elsewhere+"&delay=1h", `{}`).decode(t)["id"]) == 0
	})
	schedule := f.call(http.StatusCreated, http.MethodPost, "/schedules", fmt.Sprintf(`{"queue":%q,"cron":"@yearly","timezone":"UTC","event":{"of":"a schedule"}}`, elsewhere)).decode(t)["id"]
	put("/queues/"+elsewhere+"/placement", `{"cells":[1]}`)
	f.call(http.StatusCreated, http.MethodPost, fmt.Sprintf("/schedules/%.0f/run", schedule), "")
	if event := take("an occurrence"); event["occurrence"] == nil {
		t.Errorf("an occurrence came as %v", event)
	}
}

// A visitor opens pages of cells through a gateway, and keeps the cookies of its log-ins.
type visitor struct {
	f       *fleet
	at      string // what the paths of the pages begin with
	cookies []string
}

// logIn logs in to the pages below a path with a key.
func (v *visitor) logIn(at, key string) {
	v.f.t.Helper()
	v.at = at
	_, header := v.send(http.StatusSeeOther, http.MethodPost, "login", url.Values{"key": {key}}.Encode())
	cookie, _, _ := strings.Cut(header.Get("Set-Cookie"), ";")
	v.cookies = append(v.cookies, cookie)
}

// queues opens the list of queues, which must have the status.
func (v *visitor) queues(status int) string {
	v.f.t.Helper()
	text, _ := v.send(status, http.MethodGet, "queues", "")
	return text
}

// send sends a request for a page, whose answer must have the status. It follows no redirect.
func (v *visitor) send(status int, method, path, form string) (text string, header http.Header) {
	v.f.t.Helper()
	req, err := http.NewRequestWithContext(v.f.t.Context(), method, "http://"+v.f.addr+v.at+path, strings.NewReader(form))
	if err != nil {
		v.f.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Sec-Fetch-Site", "same-origin")
	req.Header.Set("Cookie", strings.Join(v.cookies, "; "))
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		v.f.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != status {
		v.f.t.Fatalf("%s %s answered %d, want %d: %v %s", method, path, resp.StatusCode, status, err, body)
	}
	return string(body), resp.Header
}

func TestPagesOfEachCellAreBelowItsPath(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	queues := f.queuesOn()
	v := &visitor{f: f, at: "/cells/1/ui/"}
	v.queues(http.StatusSeeOther)
	v.logIn("/ui/", keyOfCells)
	v.at = "/cells/1/ui/"
	v.queues(http.StatusSeeOther) // to be logged in at home is not to be logged in there
	v.logIn("/cells/1/ui/", keyOfCells)
	for number, at := range []string{"/ui/", "/cells/1/ui/"} {
		v.at = at
		if page := v.queues(http.StatusOK); !strings.Contains(page, queues[number]) || strings.Contains(page, queues[1-number]) {
			t.Errorf("%squeues: %s", at, page)
		}
	}
	v.send(http.StatusSeeOther, http.MethodPost, "queues/"+queues[1]+"/pause", "")
	if audit := f.call(http.StatusOK, http.MethodGet, "/cells/1/audit?action=queue.pause", "").body; !strings.Contains(audit, queues[1]) {
		t.Errorf("the audit of the cell: %s", audit)
	}
	v.send(http.StatusSeeOther, http.MethodPost, "logout", "")
	v.queues(http.StatusSeeOther)
	v.at = "/ui/"
	v.queues(http.StatusOK)
}

func TestKeysOfCellsAreThoseOfTheFileNow(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "keys")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("0=first")
	c := &gatewayStartCmd{}
	c.CellKeys, c.CellKeysFile = map[int]string{0: "first"}, path
	keys := c.cellKeys(zerolog.Nop())
	for _, step := range []struct {
		text string
		want map[int]string
	}{
		{"0=first 1=second\n", map[int]string{0: "first", 1: "second"}},
		{"0=first 1=", map[int]string{0: "first", 1: "second"}}, // half of it
		{"0=first 1=third and more", map[int]string{0: "first", 1: "second"}},
		{"0=first 1=third 2=another\n", map[int]string{0: "first", 1: "third", 2: "another"}},
	} {
		write(step.text)
		if got := keys(); !maps.Equal(got, step.want) {
			t.Errorf("after %q the keys are %v, want %v", step.text, got, step.want)
		}
	}
	if err := os.Remove(path); err != nil || len(keys()) != 3 {
		t.Errorf("without the file the keys are %v, %v", keys(), err)
	}
}
