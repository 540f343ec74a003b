package http

import (
	"bufio"
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/go-cmp/cmp"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/export"
	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
	"github.com/queued/queued/internal/request"
)

// hostileTexts are errors and types that break formats, or spreadsheets.
var hostileTexts = []string{
	"plain", `=1+1`, "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1", `"`, `""`, "a,b", "a;b", "a\r\n#end,5,,,,", " =1", "'", "ünï\u2028cödé", `\"},{"id":5`, "[1,2", "}}",
}

// fillHistory puts n events into history of the queue, the oldest of them first, with the texts in turn and ids beyond 2^53.
func (h *environment) fillHistory(queueName string, n int, payload string) {
	h.t.Helper()
	h.cellOf(queueName).sql(`insert into agent.event_hist (id, event_ts, attempts, vt, claimed, event, queue, enqueued_at, outcome, finished_at, last_error, worker, priority, result)
		select (1::int8 << 60) + 1000000 * hashtext($1)::int8 + i, now() - i / 3 * interval '1 ms', 1, now(), array[now()], jsonb_build_object('n', i, 'text', $4::text), $1, now(), 'failed', now(),
			($3::text[])[1 + i % cardinality($3)], ($3::text[])[1 + (i + 1) % cardinality($3)], -i, to_jsonb(($3::text[])[1 + i % cardinality($3)])
		from generate_series(0, $2 - 1) i`, queueName, n, hostileTexts, payload)
}

// exported is an answer with its trailer.
func (c *client) exported(path, accept string) (body string, trailer, header http.Header) {
	c.t.Helper()
	if accept != "" {
		c = c.with("Accept", accept)
	}
	resp, err := c.http.Do(c.request(c.t.Context(), "GET", path, ""))
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	content, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		c.t.Fatalf("GET %s returned %d, %v: %.500s", path, resp.StatusCode, err, content)
	}
	return string(content), resp.Trailer, resp.Header
}

// listed returns the rows of a listing, page after page, as they come.
func (c *client) listed(path, name string) (rows []json.RawMessage) {
	c.t.Helper()
	for cursor := ""; ; {
		var page map[string]json.RawMessage
		query := path
		if cursor != "" {
			query += "&cursor=" + cursor
		}
		if err := json.Unmarshal([]byte(c.call("GET", query, "").want(http.StatusOK).body), &page); err != nil {
			c.t.Fatal(err)
		}
		var some []json.RawMessage
		if err := json.Unmarshal(page[name], &some); err != nil {
			c.t.Fatal(err)
		}
		rows = append(rows, some...)
		cursor = ""
		_ = json.Unmarshal(page["next"], &cursor)
		if cursor == "" {
			return rows
		}
	}
}

// wantExports fails the test unless the export at a path has these rows, as lines and as CSV.
func (c *client) wantExports(path string, rows []json.RawMessage) {
	c.t.Helper()
	text, trailer, header := c.exported(path+"&format=ndjson", "text/csv")
	lines := strings.Split(text, "\n")
	if header.Get("Content-Type") != "application/x-ndjson" || !strings.HasSuffix(header.Get("Content-Disposition"), `.ndjson"`) || trailer.Get("Export-Rows") != strconv.Itoa(len(rows)) {
		c.t.Errorf("%s has the header %v and the trailer %v", path, header, trailer)
	}
	want := make([]string, len(rows), len(rows)+2)
	for i := range rows {
		want[i] = string(rows[i])
	}
	if diff := cmp.Diff(append(want, fmt.Sprintf(`{"end":{"rows":%d}}`, len(rows)), ""), lines); diff != "" {
		c.t.Errorf("%s (-listed +lines)\n%s", path, diff)
	}

	text, trailer, header = c.exported(path, "text/csv")
	if !strings.HasPrefix(header.Get("Content-Type"), "text/csv;") || !strings.HasSuffix(header.Get("Content-Disposition"), `.csv"`) || trailer.Get("Export-Rows") != strconv.Itoa(len(rows)) {
		c.t.Errorf("%s has the header %v and the trailer %v", path, header, trailer)
	}
	records, err := csv.NewReader(strings.NewReader(text)).ReadAll() // it refuses records of different lengths
	if err != nil {
		c.t.Fatal(err)
	}
	names, cells := records[0], records[1:]
	if last := cells[len(cells)-1]; last[0] != "#end" || last[1] != strconv.Itoa(len(rows)) || strings.Join(last[2:], "") != "" {
		c.t.Errorf("%s ends with %q", path, last)
	}
	if cells = cells[:len(cells)-1]; len(cells) != len(rows) {
		c.t.Fatalf("%s has %d records, want %d", path, len(cells), len(rows))
	}
	for i, row := range rows {
		var members map[string]json.RawMessage
		if err := json.Unmarshal(row, &members); err != nil {
			c.t.Fatal(err)
		}
		for at, name := range names {
			if got, want := cells[i][at], cellOf(name, members[name]); got != want {
				c.t.Fatalf("%s: %s of record %d is %q, want %q", path, name, i+1, got, want)
			}
			delete(members, name)
		}
		if len(members) > 0 {
			c.t.Fatalf("%s: CSV has no column for %v", path, slices.Sorted(maps.Keys(members)))
		}
	}
}

// formulaStarts are the characters that a formula of a spreadsheet may begin with.
const formulaStarts = "=+-@\t\r\n＝＋－＠"

// cellOf is the cell that the contract has for a member, as encoding/csv reads it.
func cellOf(name string, value json.RawMessage) string {
	var text string
	if slices.Contains([]string{"claimed", "occurrence", "publication", "meta", "result", "event", "detail"}, name) || json.Unmarshal(value, &text) != nil {
		return string(value)
	}
	if text != "" && slices.Contains([]rune(formulaStarts), []rune(text)[0]) {
		text = "'" + text
	}
	return strings.ReplaceAll(text, "\r\n", "\n") // as encoding/csv has it
}

func TestExportHasTheRowsOfTheListing(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	h := setup(t)
	h.fillHistory("mail", 2500, "x")
	h.fillHistory("other", 7, "x")
	h.wantExports("/history?queue=mail", h.listed("/history?queue=mail&limit=1000", "events"))
	h.wantExports("/history?queue=none", nil)
	h.wantExports("/history?queue=other&limit=7", h.listed("/history?queue=other", "events"))

	span := "from=2026-02-01T00:00:00Z&to=2026-02-08T00:00:00Z"
	h.wantExports("/history/stats?"+span, h.listed("/history/stats?"+span, "buckets"))

	for i := range 5 {
		h.call("POST", fmt.Sprintf("/queues/q%d/pause", i), "").want(http.StatusOK)
	}
	h.wantExports("/audit?action=queue.*", h.listed("/audit?action=queue.*&limit=2", "actions"))
}

func TestExportEndsAtItsLimitAndSaysWhereToGoOn(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	h := setup(t)
	h.fillHistory("mail", 1500, "x")
	all, _, _ := h.exported("/history", "application/x-ndjson")
	lines := strings.SplitAfter(all, "\n")
	for _, limit := range []int{1, 1000, 1499} {
		first, _, _ := h.exported(fmt.Sprintf("/history?format=ndjson&limit=%d", limit), "")
		body, end, _ := strings.Cut(first, `{"end":`)
		var said struct {
			Rows int
			Next string
		}
		if err := json.Unmarshal([]byte(strings.TrimSuffix(end, "}\n")), &said); err != nil || said.Rows != limit || body != strings.Join(lines[:limit], "") {
			t.Fatalf("an export of %d ends with %s, %v", limit, end, err)
		}
		rest, _, _ := h.exported("/history?format=ndjson&cursor="+said.Next, "")
		if want := strings.Join(lines[limit:1500], "") + fmt.Sprintf(`{"end":{"rows":%d}}`+"\n", 1500-limit); rest != want {
			t.Errorf("an export goes on with %.200s", rest)
		}
		text, _, _ := h.exported(fmt.Sprintf("/history?format=csv&limit=%d", limit), "")
		if want := fmt.Sprintf("\r\n#end,%d,%s,,", limit, said.Next); !strings.Contains(text, want) {
			t.Errorf("an export of %d as CSV does not end with %s", limit, want)
		}
	}
	h.call("GET", "/history?limit=1001", "").wantProblem(problem.InvalidParameter)
	for _, query := range []string{"format=xml", "format=", "format=csv&limit=0", "format=csv&format=ndjson", "format=csv&cursor=bGlzdCAxIDE"} {
		if got := h.try("GET", "/history?"+query, ""); got.status != http.StatusBadRequest {
			t.Errorf("%s returned %d", query, got.status)
		}
	}
	if p := h.try("GET", "/history?format=xml", "").wantProblem(problem.InvalidParameter); p.Errors[0].Detail != "must be one of csv, ndjson" {
		t.Errorf("an unknown format is refused with %+v", p)
	}
}

func TestColumnsOfExportsAreTheMembersInTheContract(t *testing.T) {
	t.Parallel()
	doc := loadSpec(t)
	for path, c := range map[string]struct {
		list    string
		columns []export.Column
	}{"/history": {"events", export.HistoryColumns}, "/history/stats": {"buckets", export.StatsColumns}, "/audit": {"actions", export.AuditColumns}} {
		content := doc.Paths.Find(path).Get.Responses.Status(http.StatusOK).Value.Content
		members := make(map[string]bool)
		addMembers(members, content["application/json"].Schema.Value.Properties[c.list].Value.Items)
		for _, name := range []string{"cursor", "blocked_by"} { // exports have no cursors, and what has ended waits for nothing
			delete(members, name)
		}
		names := convert(c.columns, func(c export.Column) string { return c.Name })
		if diff := cmp.Diff(slices.Sorted(maps.Keys(members)), slices.Sorted(slices.Values(names))); diff != "" {
			t.Errorf("%s (-contract +columns)\n%s", path, diff)
		}
		for _, example := range content["text/csv"].Examples {
			records, err := csv.NewReader(strings.NewReader(example.Value.Value.(string))).ReadAll()
			if err != nil || !slices.Equal(records[0], names) {
				t.Errorf("%s: the example in the contract has the columns %v, %v", path, records, err)
			}
		}
	}
}

// addMembers adds the names of the members of a schema's objects.
func addMembers(names map[string]bool, schema *openapi3.SchemaRef) {
	for name := range schema.Value.Properties {
		names[name] = true
	}
	for _, part := range schema.Value.AllOf {
		addMembers(names, part)
	}
}

func TestFormatOfExportIsTheOneThatIsPreferred(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, accept, want string }{
		{"", "", ""},
		{"", "*/*", ""},
		{"", "application/json", ""},
		{"", "text/html,application/xhtml+xml,*/*;q=0.8", ""},
		{"", "text/*", ""},
		{"", "image/png", ""},
		{"", "text/csv", "csv"},
		{"", "Text/CSV; header=present", "csv"},
		{"", "text/csv, */*;q=0.1", "csv"},
		{"", "application/json, text/csv;q=0.9", ""},
		{"", "application/x-ndjson", "ndjson"},
		{"", "application/x-ndjson, text/csv;q=0.5", "ndjson"},
		{"", "application/x-ndjson;q=0.5, text/csv", "csv"},
		{"csv", "application/json", "csv"},
		{"ndjson", "text/csv", "ndjson"},
		{"", "text/csv;q=0", ""},
	} {
		r := httptest.NewRequestWithContext(t.Context(), "GET", "/history", nil)
		if c.accept != "" {
			r.Header.Set("Accept", c.accept)
		}
		got := ""
		if format := export.New(request.ExportFormat(r, c.name), export.StatsColumns); format != nil {
			got = format.Extension()
		}
		if got != c.want {
			t.Errorf("format %q and Accept %q get %q, want %q", c.name, c.accept, got, c.want)
		}
	}
}

func TestExportHasTheQueuesOfTheKeyAlone(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.createKey(access.CreateParams{Scopes: []access.Scope{access.Admin}})
	h.fillHistory("orders.new", 3, "x")
	h.fillHistory("mail", 1200, "x")
	c := h.key(h.createKey(access.CreateParams{Scopes: []access.Scope{access.Read}, Queues: []string{"orders.*"}}))
	for _, query := range []string{"", "&queue=orders.new"} {
		c.wantExports("/history?outcome=failed"+query, c.listed("/history?outcome=failed"+query, "events"))
		if text, _, _ := c.exported("/history?outcome=failed"+query, "application/x-ndjson"); strings.Count(text, "\n") != 4 {
			t.Errorf("a key for orders.* gets %.500s", text)
		}
	}
	c.call("GET", "/history?format=csv&queue=mail", "").wantProblem(problem.Forbidden)
	c.call("GET", "/audit?format=csv", "").wantProblem(problem.Forbidden)
	h.try("GET", "/history?format=csv", "").wantProblem(problem.Unauthorized)
}

// slowExport begins an export that is longer than the buffers between here and there, and returns what comes of it.
func (h *environment) slowExport(c *client, path string) *http.Response {
	h.t.Helper()
	transport := h.raw.Clone()
	transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err == nil {
			err = conn.(*net.TCPConn).SetReadBuffer(64 << 10)
		}
		return conn, err
	}
	h.t.Cleanup(transport.CloseIdleConnections)
	resp, err := transport.RoundTrip(c.request(h.t.Context(), "GET", path, ""))
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = resp.Body.Close() })
	if resp.StatusCode != http.StatusOK {
		h.t.Fatalf("GET %s returned %d", path, resp.StatusCode)
	}
	return resp
}

func TestExportThatFailsLooksCutShort(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(h *environment, keys ...string){
		"not_ready": func(h *environment, _ ...string) { h.drain() },
		"key_revoked": func(h *environment, keys ...string) {
			for _, key := range keys {
				h.revokeKey(strings.Split(key, "_")[1])
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := setup(t)
			h.createKey(access.CreateParams{Scopes: []access.Scope{access.Admin}})
			one, other := h.createKey(access.CreateParams{Scopes: []access.Scope{access.Read}}), h.createKey(access.CreateParams{Scopes: []access.Scope{access.Read}})
			h.fillHistory("mail", 5000, strings.Repeat("x", 2000))
			lines, cells := h.slowExport(h.key(one), "/history?format=ndjson"), h.slowExport(h.key(other), "/history?format=csv") //nolint:bodyclose // slowExport does
			fail(h, one, other)
			text, err := io.ReadAll(lines.Body)
			if err == nil || lines.Trailer.Get("Export-Rows") != "" {
				t.Errorf("the export ended with %v and the trailer %v", err, lines.Trailer)
			}
			last := bytes.Split(bytes.TrimSuffix(text, []byte("\n")), []byte("\n"))
			var said struct{ Error problem.Document }
			if err := json.Unmarshal(last[len(last)-1], &said); err != nil || said.Error.Code != name || said.Error.RequestID != lines.Header.Get("X-Request-Id") {
				t.Errorf("the last line is %.300s, %v", last[len(last)-1], err)
			}
			if n := len(last); n < 1000 || n >= 5000 {
				t.Errorf("the export has %d lines", n)
			}
			text, err = io.ReadAll(cells.Body)
			if err == nil || bytes.Contains(text, []byte("\r\n#end,5000")) || cells.Trailer.Get("Export-Rows") != "" {
				t.Errorf("the export as CSV ended with %v and the trailer %v", err, cells.Trailer)
			}
			h.log.wait(t, `"route":"/history"`, `"ended":"`+name+`"`)
		})
	}
}

func TestExportsOfAProcessAreFew(t *testing.T) {
	t.Parallel()
	h := setupWith(t, settings{server: func(s *Server, _ *http.Server) { s.blockedLimit = busyTimeout }})
	h.fillHistory("mail", 5000, strings.Repeat("x", 2000))
	open := []*http.Response{h.slowExport(h.client, "/history?format=ndjson"), h.slowExport(h.client, "/history?format=csv")} //nolint:bodyclose // slowExport does
	refused := h.call("GET", "/history?format=csv", "")
	if refused.wantProblem(problem.Overloaded); refused.header.Get("Retry-After") == "" {
		t.Error("a third export is not told when to come back")
	}
	h.call("GET", "/history?limit=1000", "").want(http.StatusOK)
	for _, resp := range open {
		_ = resp.Body.Close()
		ended := []string{`"request_id":"` + resp.Header.Get("X-Request-Id") + `"`}
		if len(h.others) > 0 { // the cells' lines are about the pages that it is made of
			ended = append(ended, `"cell":"several"`)
		}
		h.log.wait(t, ended...)
	}
	h.call("GET", "/history?format=csv&limit=1", "").want(http.StatusOK)
}

func TestAKeyHasOneExportAtATime(t *testing.T) {
	t.Parallel()
	h := setupWith(t, settings{server: func(s *Server, _ *http.Server) { s.blockedLimit = busyTimeout }})
	h.createKey(access.CreateParams{Scopes: []access.Scope{access.Admin}})
	tenant := func() (*client, *browser) {
		key := h.createKey(access.CreateParams{Scopes: []access.Scope{access.Read}, Queues: []string{"mail"}})
		b := h.browse(t)
		b.logIn(key, "").want(http.StatusSeeOther)
		return h.key(key), b
	}
	slow, slowPages := tenant()
	other, otherPages := tenant()
	h.fillHistory("mail", 5000, strings.Repeat("x", 2000))
	open := h.slowExport(slow, "/history?format=ndjson")
	refused := slow.call("GET", "/history?format=csv&limit=1", "")
	if refused.wantProblem(problem.RateLimited); refused.header.Get("Retry-After") == "" {
		t.Error("a second export of the key is not told when to come back")
	}
	slowPages.get("history/download?format=csv&outcome=done").want(http.StatusTooManyRequests)
	other.call("GET", "/history?format=csv&limit=1", "").want(http.StatusOK)
	otherPages.get("history/download?format=csv&outcome=done").want(http.StatusOK)
	slow.call("GET", "/history?limit=1000", "").want(http.StatusOK)
	_ = open.Body.Close()
	h.log.wait(t, `"request_id":"`+open.Header.Get("X-Request-Id")+`"`)
	slow.call("GET", "/history?format=csv&limit=1", "").want(http.StatusOK)
}

func TestExportThatIsNotReadIsGivenUp(t *testing.T) {
	t.Parallel()
	h := setupWith(t, settings{server: func(s *Server, _ *http.Server) { s.blockedLimit = time.Second }})
	h.fillHistory("mail", 5000, strings.Repeat("x", 2000))
	for _, format := range []string{"ndjson", "csv"} {
		resp := h.slowExport(h.client, "/history?format="+format) //nolint:bodyclose // slowExport does
		h.log.wait(t, `"request_id":"`+resp.Header.Get("X-Request-Id")+`"`, `"ended":"blocked"`)
		if _, err := io.ReadAll(resp.Body); err == nil {
			t.Errorf("an export as %s that was not read looks whole", format)
		}
	}
}

func TestHeadOfExportHasNoRows(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.fillHistory("mail", 2, "x")
	got := h.try("HEAD", "/history?format=csv", "").want(http.StatusOK)
	if got.body != "" || !strings.HasPrefix(got.header.Get("Content-Type"), "text/csv") {
		t.Errorf("HEAD returned %v %s", got.header, got.body)
	}
}

func TestCellsOfCSVAreReadBackAndNoFormulas(t *testing.T) {
	t.Parallel()
	for _, text := range hostileTexts {
		format := export.New("csv", export.HistoryColumns)
		row, err := encode(nil, (*event)(&queue.Event{ID: 1<<60 + 1, LastError: &text, Type: text, Result: json.RawMessage(`-5`), Priority: -7}))
		if err != nil {
			t.Fatal(err)
		}
		b, err := format.Row(format.Begin(nil), row)
		if err != nil {
			t.Fatal(err)
		}
		r := csv.NewReader(bufio.NewReader(bytes.NewReader(b)))
		records, err := r.ReadAll()
		if err != nil || len(records) != 2 {
			t.Fatalf("%q becomes %q, %v", text, b, err)
		}
		for i, name := range records[0] {
			var want string
			got := records[1][i]
			switch name {
			case "id":
				want = "1152921504606846977"
			case "priority":
				want = "-7"
			case "result":
				want = "-5"
			case "type", "last_error":
				want = cellOf(name, json.RawMessage(appendText(nil, text)))
				if strings.ContainsAny(got[:min(1, len(got))], "=+-@\t\r\n") {
					t.Errorf("%q becomes the formula %q", text, got)
				}
			default:
				continue
			}
			if got != want {
				t.Errorf("%s: %q becomes %q, want %q", name, text, got, want)
			}
		}
	}
}
