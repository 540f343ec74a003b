package client

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
)

const (
	csvNames = "id,queue,text\r\n"
	twoRows  = csvNames + "1,q,\"a\r\n#end,1,\"\r\n2,q,\"say \"\"#end,2,\"\"\r\n#end,2,\r\n\"\r\n"
	twoLines = `{"id":1,"text":"{\"end\":{\"rows\":0}}"}` + "\n" + `{"id":2,"end":{"rows":1}}` + "\n"
)

func TestExportIsWholeOnlyWithItsEnd(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		format ExportFormat
		text   string
		want   Exported
		isCut  bool
	}{
		"CSV":                            {ExportCSV, twoRows + "#end,2,\r\n", Exported{Rows: 2}, false},
		"CSV without rows":               {ExportCSV, csvNames + "#end,0,\r\n", Exported{}, false},
		"CSV of a limit":                 {ExportCSV, twoRows + "#end,2,abc\r\n", Exported{Rows: 2, Next: "abc", More: true}, false},
		"lines":                          {ExportLines, twoLines + `{"end":{"rows":2}}` + "\n", Exported{Rows: 2}, false},
		"lines of a limit":               {ExportLines, twoLines + `{"end":{"rows":2,"next":"abc"}}` + "\n", Exported{Rows: 2, Next: "abc", More: true}, false},
		"no lines":                       {ExportLines, `{"end":{"rows":0}}` + "\n", Exported{}, false},
		"an end of another number":       {ExportCSV, twoRows + "#end,3,\r\n", Exported{}, true},
		"lines of another number":        {ExportLines, twoLines + `{"end":{"rows":1}}` + "\n", Exported{}, true},
		"an end without a line break":    {ExportLines, twoLines + `{"end":{"rows":2}}`, Exported{}, true},
		"CSV without a line break":       {ExportCSV, twoRows + "#end,2,", Exported{}, true},
		"CSV with something else":        {ExportCSV, twoRows + "#end,2,\r\n3,q,\r\n", Exported{}, true},
		"CSV with half an end":           {ExportCSV, twoRows + "#end\r\n", Exported{}, true},
		"CSV with no number":             {ExportCSV, twoRows + "#end,x,\r\n", Exported{}, true},
		"a page of a server of the past": {ExportLines, `{"events":[],"next":null}` + "\n", Exported{}, true},
		"an error":                       {ExportLines, twoLines + `{"error":{"code":"query_timeout","status":503,"title":"a","detail":"b","request_id":"r"}}` + "\n", Exported{}, true},
		"nothing":                        {ExportLines, "", Exported{}, true},
		"nothing as CSV":                 {ExportCSV, "", Exported{}, true},
	} {
		texts := []string{c.text}
		if !c.isCut { // whatever is missing at the end of a whole one, it is cut
			for n := range c.text {
				texts = append(texts, c.text[:n])
			}
		}
		for i, text := range texts {
			client := answering(t, Config{RetryFor: -1}, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) })
			var got bytes.Buffer
			exported, err := client.ExportHistory(t.Context(), &got, HistoryFilter{}, ExportParams{Format: c.format})
			if got.String() != text {
				t.Errorf("%s: %q was written of %q", name, &got, text)
			}
			if i == 0 && !c.isCut {
				if err != nil || exported != c.want {
					t.Errorf("%s: %+v, %v", name, exported, err)
				}
			} else if !errors.Is(err, ErrExportCutShort) {
				t.Errorf("%s: %q returned %+v, %v", name, text, exported, err)
			}
			if name == "an error" && (!errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "after 2 rows")) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

func TestExportThatIsBrokenOffIsCutShort(t *testing.T) {
	t.Parallel()
	c := answering(t, Config{RetryFor: -1}, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, twoRows+"#end,2,\r\n")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	if _, err := c.ExportAudit(t.Context(), io.Discard, AuditFilter{}, ExportParams{Format: ExportCSV}); !errors.Is(err, ErrExportCutShort) {
		t.Errorf("it returned %v", err)
	}
}

func TestBeginningOfExportIsRetriedAndItsWriterIsHeard(t *testing.T) {
	t.Parallel()
	calls := 0
	c := answering(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		if calls++; calls < 3 {
			problem(w, http.StatusServiceUnavailable, "overloaded")
			return
		}
		if got := r.URL.RawQuery; got != "format=ndjson&limit=5" {
			t.Errorf("the query is %s", got)
		}
		_, _ = io.WriteString(w, `{"end":{"rows":0}}`+"\n")
	})
	if _, err := c.ExportHistory(t.Context(), io.Discard, HistoryFilter{PageSize: 100}, ExportParams{Limit: 5}); err != nil || calls != 3 {
		t.Errorf("%d calls, %v", calls, err)
	}
	full := errors.New("the disk is full")
	if _, err := c.ExportHistory(t.Context(), failingWriter{full}, HistoryFilter{}, ExportParams{Limit: 5}); !errors.Is(err, full) {
		t.Errorf("a writer that fails returned %v", err)
	}
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

func TestEndOfExportIsFoundHoweverItIsRead(t *testing.T) {
	t.Parallel()
	for _, text := range []string{twoRows + "#end,2,\r\n", csvNames + strings.Repeat("x", 2*maxEnd) + "\r\n1,q,\r\n#end,2,\r\n"} {
		end := exportEnd{isCSV: true}
		for i := range text {
			end.add([]byte{text[i]})
		}
		if got, err := end.find("/history"); err != nil || got.Rows != 2 || len(end.record) > maxEnd {
			t.Errorf("%+v, %v", got, err)
		}
	}
}
