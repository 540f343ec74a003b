package http

import (
	"encoding/json"
	"net/http"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/queued/queued/internal/topic"
)

// A sseParser reads Server-Sent Events as the standard says a browser does.
type sseParser struct {
	started bool // it has read a line
	line    []byte
	afterCR bool

	// of the frame that is not complete
	data     []string
	id, name string

	lastID   string
	retry    time.Duration
	frames   int
	comments int
	events   []sseEvent
}

type sseEvent struct {
	name, data, lastID string
}

// feed reads more of a stream.
func (p *sseParser) feed(b []byte) {
	for _, c := range b {
		if p.afterCR {
			p.afterCR = false
			if c == '\n' {
				continue
			}
		}
		switch c {
		case '\r', '\n':
			p.afterCR = c == '\r'
			p.readLine(string(p.line))
			p.line = p.line[:0]
		default:
			p.line = append(p.line, c)
		}
	}
}

func (p *sseParser) readLine(line string) {
	if !p.started {
		p.started = true
		line = strings.TrimPrefix(line, "\ufeff")
	}
	if line == "" {
		p.dispatch()
		return
	}
	field, value, _ := strings.Cut(line, ":")
	value = strings.TrimPrefix(value, " ")
	switch field {
	case "":
		p.comments++
	case "event":
		p.name = value
	case "data":
		p.data = append(p.data, value)
	case "id":
		if !strings.Contains(value, "\x00") {
			p.id = value
		}
	case "retry":
		if n, err := strconv.ParseUint(value, 10, 32); err == nil && !strings.HasPrefix(value, "+") {
			p.retry = time.Duration(n) * time.Millisecond
		}
	}
}

func (p *sseParser) dispatch() {
	p.frames++
	p.lastID = p.id
	if p.data != nil {
		p.events = append(p.events, sseEvent{p.name, strings.Join(p.data, "\n"), p.lastID})
	}
	p.data, p.name = nil, ""
}

func TestServerSentEventsAreParsedAsTheStandardSays(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile("testdata/sse.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors struct {
		Cases []struct {
			Name   string `json:"name"`
			Stream string `json:"stream"`
			Events []struct {
				Data   string  `json:"data"`
				LastID *string `json:"lastEventId"`
			} `json:"events"`
			Retry int `json:"retry_ms"`
		} `json:"parser_cases"`
	}
	if err := json.Unmarshal(content, &vectors); err != nil || len(vectors.Cases) == 0 {
		t.Fatal(len(vectors.Cases), err)
	}
	for _, tc := range vectors.Cases {
		for _, size := range []int{1, 3, len(tc.Stream)} {
			p := new(sseParser)
			for rest := []byte(tc.Stream); len(rest) > 0; {
				n := min(size, len(rest))
				p.feed(rest[:n])
				rest = rest[n:]
			}
			var got, want []string
			for _, e := range p.events {
				got = append(got, e.data)
			}
			for i, e := range tc.Events {
				want = append(want, e.Data)
				if e.LastID != nil && p.events[i].lastID != *e.LastID {
					t.Errorf("%s: the id is %q, want %q", tc.Name, p.events[i].lastID, *e.LastID)
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s, %d bytes at a time (-want +got)\n%s", tc.Name, size, diff)
			}
			if tc.Retry != 0 && p.retry != time.Duration(tc.Retry)*time.Millisecond {
				t.Errorf("%s: retry is %s", tc.Name, p.retry)
			}
		}
	}
}

func TestFramesAreParsedAsTheyWereWritten(t *testing.T) {
	t.Parallel()
	for data, want := range map[string]string{
		`{"a":1}`: `{"a":1}`, "": "", "a\nb": "a\nb", "a\r\nb\rc": "a\nb\nc", "\n": "\n", "\r\n\r\n": "\n\n", " a": " a", ": a": ": a", "data: a\n\nid: 7": "data: a\n\nid: 7",
		"\r": "\n", "a\n": "a\n", "é \u2028 b": "é \u2028 b",
	} {
		p := new(sseParser)
		p.feed(appendFrame(nil, 42, "order.placed", []byte(data)))
		if got := []sseEvent{{"order.placed", want, "42"}}; !reflect.DeepEqual(p.events, got) {
			t.Errorf("%q is parsed as %+v, want %+v", data, p.events, got)
		}
	}
}

func TestFramesOfAStreamSayWhatTheyShould(t *testing.T) {
	t.Parallel()
	e := &topic.Entry{Event: topic.Event{
		Position: 7, PublishedAt: time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC), Topic: "a.b", Key: "k", Meta: json.RawMessage(`{"m": 1}`),
		Event: json.RawMessage(`{"text": "a\r\nb  c", "data: x": [1, 2]}`),
	}}
	envelope := `{"position":7,"topic":"a.b","published_at":"2026-02-03T04:05:06Z","key":"k","meta":{"m":1},"event":{"text":"a\r\nb  c","data: x":[1,2]}}`
	for name, tc := range map[string]struct {
		write func(streamFormat, []byte) []byte
		want  [3]string // as Server-Sent Events, as those with the payload alone, as lines
	}{
		"an event": {
			func(f streamFormat, b []byte) []byte { return f.event(b, e) },
			[3]string{"id: 7\nevent: a.b\ndata: " + envelope + "\n\n", "id: 7\nevent: a.b\ndata: " + `{"text":"a\r\nb  c","data: x":[1,2]}` + "\n\n", envelope + "\n"},
		},
		"the beginning": {
			func(f streamFormat, b []byte) []byte { return f.position(b, 5, 1500*time.Millisecond) },
			[3]string{": position\nretry: 1500\nid: 5\n\n", ": position\nretry: 1500\nid: 5\n\n", `{"position":5}` + "\n"},
		},
		"a position": {
			func(f streamFormat, b []byte) []byte { return f.position(b, 5, 0) },
			[3]string{": position\nid: 5\n\n", ": position\nid: 5\n\n", `{"position":5}` + "\n"},
		},
		"a gap": {
			func(f streamFormat, b []byte) []byte {
				return f.gap(b, topic.Gap{After: 1, Until: 3, Reason: topic.GapRetention})
			},
			[3]string{"id: 3\nevent: gap\ndata: " + `{"gap":{"after":1,"until":3,"reason":"retention"}}` + "\n\n", "id: 3\nevent: gap\ndata: " + `{"gap":{"after":1,"until":3,"reason":"retention"}}` + "\n\n", `{"gap":{"after":1,"until":3,"reason":"retention"}}` + "\n"},
		},
		"the end": {
			func(f streamFormat, b []byte) []byte { return f.end(b, time.Second) },
			[3]string{"retry: 1000\n\n", "retry: 1000\n\n", ""},
		},
	} {
		for i, format := range []streamFormat{eventStream{}, eventStream{payloadOnly: true}, ndjson{}} {
			if got := string(tc.write(format, []byte("before\n"))); got != "before\n"+tc.want[i] {
				t.Errorf("%s as %T is\n%s\nwant\n%s", name, format, got, tc.want[i])
			}
		}
	}
}

func TestFormatOfAStreamIsWhatTheClientPrefers(t *testing.T) {
	t.Parallel()
	for accept, want := range map[string]streamFormat{
		"":                                    eventStream{},
		"*/*":                                 eventStream{},
		"text/event-stream":                   eventStream{},
		"TEXT/Event-Stream; charset=utf-8":    eventStream{},
		"application/x-ndjson":                ndjson{},
		"application/*":                       ndjson{},
		"application/x-ndjson, */*;q=0.5":     ndjson{},
		"application/x-ndjson;q=0.5, */*":     eventStream{},
		"text/event-stream;q=0, */*":          ndjson{},
		"text/html, application/x-ndjson":     ndjson{},
		"application/json":                    nil,
		"text/html":                           nil,
		"text/event-stream;q=0":               nil,
		"nonsense":                            nil,
		"*/*;q=0, application/x-ndjson;q=0.1": ndjson{},
	} {
		h := make(http.Header)
		if accept != "" {
			h.Set("Accept", accept)
		}
		if got, err := streamFormatFor(h, false); got != want || (err == nil) != (want != nil) {
			t.Errorf("%q prefers %T, %v; want %T", accept, got, err, want)
		}
	}
}
