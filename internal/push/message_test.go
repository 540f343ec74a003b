package push

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/queued/queued/internal/queue"
	"github.com/queued/queued/internal/trace"
)

func TestInvalidTraceContextsAreNotSent(t *testing.T) {
	t.Parallel()
	const valid = "00-12345678901234567890123456789012-1234567890123456-01"
	for parent, isSent := range map[string]bool{valid: true, " " + valid: true, "ff" + valid[2:]: false, valid + "-x": false, "": false} {
		meta, _ := json.Marshal(map[string]string{"traceparent": parent, "tracestate": "a=1"})
		header := make(http.Header)
		trace.OfMeta(meta).AddTo(header)
		if sent := header.Get("Traceparent") == valid; sent != isSent || sent != (header.Get("Tracestate") == "a=1") {
			t.Errorf("%q is sent: %t, want %t", parent, sent, isSent)
		}
	}
	// A later version may go on, but with nothing that a header field cannot have.
	const later = "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for rest, isSent := range map[string]bool{"": true, "-": true, "-more-!~": true, "-\x01": false, "-\x7f": false, "-a\tb": false, "-a b": false, "-é": false, "-a\r\nX: y": false} {
		meta, _ := json.Marshal(map[string]string{"traceparent": later + rest})
		header := make(http.Header)
		trace.OfMeta(meta).AddTo(header)
		if sent := header.Get("Traceparent") == later+rest; sent != isSent || !sent && len(header) > 0 {
			t.Errorf("%q: sent is %v", later+rest, sent)
		}
	}
	for _, meta := range []string{`{}`, `{"traceparent":1}`, `{"traceparent":null}`, `{"traceparent":{"a":1}}`} {
		header := make(http.Header)
		if trace.OfMeta(json.RawMessage(meta)).AddTo(header); len(header) > 0 {
			t.Errorf("%s: sent %v", meta, header)
		}
	}
}

func TestEventsOfTopicsHaveThemAsTypes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ typ, publication, standard, cloudEvent string }{
		{"", `{"topic":"queued.push.disabled","subscription":"alerts"}`, "queued.push.disabled", "queued.push.disabled"},
		{"alert", `{"topic":"queued.push.disabled"}`, "alert", "alert"},
		{"", "", "event", "queued.event"},
	} {
		event := queue.Event{ID: 1, Queue: "mail", Type: tt.typ, Payload: json.RawMessage(`{}`), Publication: json.RawMessage(tt.publication)}
		for format, want := range map[Format]string{Standard: tt.standard, CloudEvents: tt.cloudEvent} {
			_, body, err := (&endpoint{format: format, header: make(http.Header)}).messageOf(&event, 1)
			var sent struct{ Type string }
			if err != nil || json.Unmarshal(body, &sent) != nil || sent.Type != want {
				t.Errorf("the type %q of %s is %q in the format %s, want %q; %v", tt.typ, tt.publication, sent.Type, format, want, err)
			}
		}
	}
}

func TestPushSaysWhichSourceHasVerifiedTheEvent(t *testing.T) {
	t.Parallel()
	for meta, want := range map[string]string{
		`{"verified_source":"github"}`: `"verified_source":"github",`, `{"Verified_Source":"github"}`: "", `{"verified_source":1}`: "", `{}`: "", ``: "",
	} {
		event := queue.Event{Type: "a", Payload: json.RawMessage(`{"n":1}`), Meta: json.RawMessage(meta)}
		body, err := standardBody(&event)
		if err != nil || string(body) != `{"type":"a","timestamp":"0001-01-01T00:00:00Z",`+want+`"data":{"n":1}}` {
			t.Errorf("%s: got %s, %v", meta, body, err)
		}
	}
}
