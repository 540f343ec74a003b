package e2e_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/client"
	cecontext "github.com/cloudevents/sdk-go/v2/context"
	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/protocol"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
)

// call makes a call and returns the response, whose body is in memory. It fails the test unless the response has this status.
func (p *process) call(t *testing.T, status int, method, path, body string, header ...string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+p.address+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if p.key != "" {
		req.Header.Set("Authorization", "Bearer "+p.key)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != status {
		t.Fatalf("%s %s returned %d, want %d: %s %v", method, path, resp.StatusCode, status, text, err)
	}
	return answer{resp.Header, text}
}

// An answer is what a call has returned.
type answer struct {
	header http.Header
	body   []byte
}

// response returns the answer as the SDK takes it.
func (a answer) response() *http.Response {
	return &http.Response{StatusCode: http.StatusOK, Header: a.header, Body: io.NopCloser(bytes.NewReader(a.body))}
}

// sentEvents are events of the SDK, one of each form of data.
func sentEvents(t *testing.T) []event.Event {
	t.Helper()
	var events []event.Event
	for i, data := range []struct {
		media string
		value any
	}{
		{event.ApplicationJSON, map[string]any{"order": 4711.0, "name": "Zoë <ä>"}},
		{event.ApplicationJSON, []any{1.5, "a"}},
		{event.ApplicationJSON, map[string]any{"data": 1.0}},
		{event.TextPlain, "héllo\n"},
		{event.ApplicationXML, []byte("<a/>")},
		{"application/octet-stream", []byte{0, 1, 254, 255}},
		{"", nil},
	} {
		e := event.New()
		e.SetID(fmt.Sprintf("é %% \"%d\"", i))
		e.SetSource("https://shop.example/orders?x=%20#1")
		e.SetType("order.paid")
		e.SetSubject("Euro € 😀")
		e.SetTime(time.Now().Add(-time.Hour))
		e.SetExtension("text", "a b%")
		e.SetExtension("number", int32(-7))
		e.SetExtension("flag", true)
		if data.value != nil {
			if err := e.SetData(data.media, data.value); err != nil {
				t.Fatal(err)
			}
		}
		events = append(events, e)
	}
	return events
}

// wantSame fails the test unless an event came back as it was sent. In binary mode extensions are sent as strings.
func wantSame(t *testing.T, got, sent event.Event, isBinary bool) {
	t.Helper()
	if err := got.Validate(); err != nil {
		t.Errorf("what came back is no event: %v", err)
	}
	if got.ID() != sent.ID() || got.Source() != sent.Source() || got.Type() != sent.Type() || got.Subject() != sent.Subject() || !got.Time().Equal(sent.Time()) ||
		got.DataContentType() != sent.DataContentType() {
		t.Errorf("got %v, want %v", got, sent)
	}
	for name, value := range sent.Extensions() {
		if back := got.Extensions()[name]; isBinary && fmt.Sprint(back) != fmt.Sprint(value) || !isBinary && !reflect.DeepEqual(back, value) {
			t.Errorf("the extension %s is %#v, want %#v", name, back, value)
		}
	}
	var gotData, sentData any = got.Data(), sent.Data()
	if strings.HasSuffix(sent.DataContentType(), "json") {
		if json.Unmarshal(got.Data(), &gotData) != nil || json.Unmarshal(sent.Data(), &sentData) != nil {
			t.Errorf("the data %s are no JSON", got.Data())
		}
	}
	if len(got.Data())+len(sent.Data()) > 0 && !reflect.DeepEqual(gotData, sentData) {
		t.Errorf("%s: the data are %q, want %q", sent.DataContentType(), got.Data(), sent.Data())
	}
}

// postBatch posts events in batched mode, for which the SDK's client has no method.
func postBatch(t *testing.T, url string, events []event.Event) protocol.Result {
	t.Helper()
	req, err := cehttp.NewHTTPRequestFromEvents(t.Context(), url, events)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	return cehttp.NewResult(resp.StatusCode, "%s", resp.Status)
}

// batch makes a call that is answered with CloudEvents, and returns them by the SDK's account.
func (p *process) batch(t *testing.T, method, path, body string) []event.Event {
	t.Helper()
	got := p.call(t, http.StatusOK, method, path, body, "Accept", event.ApplicationCloudEventsBatchJSON)
	if media := got.header.Get("Content-Type"); media != event.ApplicationCloudEventsBatchJSON {
		t.Fatalf("the response is %s: %s", media, got.body)
	}
	resp := got.response()
	defer func() { _ = resp.Body.Close() }()
	events, err := cehttp.NewEventsFromHTTPResponse(resp)
	if err != nil {
		t.Fatalf("%v: %s", err, got.body)
	}
	return events
}

// TestSDKOfCloudEventsSendsAndReceives sends events with the SDK in each mode, to a queue and to a topic, and reads them with it.
func TestSDKOfCloudEventsSendsAndReceives(t *testing.T) {
	t.Parallel()
	queued := start(t, build(t), newDatabase(t), freeAddress(t))
	base := "http://" + queued.address
	sent := sentEvents(t)
	sender, err := client.NewHTTP()
	if err != nil {
		t.Fatal(err)
	}
	for mode, encoding := range map[string]binding.Encoding{"structured": binding.EncodingStructured, "binary": binding.EncodingBinary, "batched": binding.EncodingBatch} {
		for _, target := range []string{"queue", "topic"} {
			url := base + "/cloudevents?" + target + "=" + mode
			post := func() (results []protocol.Result) {
				if encoding == binding.EncodingBatch {
					return []protocol.Result{postBatch(t, url, sent)}
				}
				ctx := binding.WithForceBinary(cecontext.WithTarget(t.Context(), url))
				if encoding == binding.EncodingStructured {
					ctx = binding.WithForceStructured(cecontext.WithTarget(t.Context(), url))
				}
				for _, e := range sent {
					results = append(results, sender.Send(ctx, e))
				}
				return results
			}
			for _, status := range []int{http.StatusCreated, http.StatusOK} { // and nothing is stored twice
				for i, result := range post() {
					var got *cehttp.Result
					if !protocol.ResultAs(result, &got) || got.StatusCode != status {
						t.Fatalf("%s to a %s: event %d got %v, want %d", mode, target, i, result, status)
					}
				}
			}
		}
		isBinary := encoding == binding.EncodingBinary
		claimed := queued.batch(t, http.MethodPost, "/claim", `{"queue":"`+mode+`","limit":100}`)
		read := queued.batch(t, http.MethodGet, "/log?topic="+mode, "")
		if len(claimed) != len(sent) || len(read) != len(sent) {
			t.Fatalf("%s: %d events claimed, %d read, want %d", mode, len(claimed), len(read), len(sent))
		}
		for i := range sent {
			wantSame(t, claimed[i], sent[i], isBinary)
			wantSame(t, read[i], sent[i], isBinary)
			id, receipt := claimed[i].Extensions()["queuedid"], claimed[i].Extensions()["queuedreceipt"]
			queued.call(t, http.StatusNoContent, http.MethodDelete, fmt.Sprintf("/events/%s?receipt=%s", id, receipt), "")
			got := queued.call(t, http.StatusOK, http.MethodGet, fmt.Sprintf("/events/%s", id), "", "Accept", event.ApplicationCloudEventsJSON)
			resp := got.response()
			one, err := cehttp.NewEventFromHTTPResponse(resp)
			_ = resp.Body.Close()
			if err != nil {
				t.Fatalf("%v: %s", err, got.body)
			}
			wantSame(t, *one, sent[i], isBinary)
		}
	}
	queued.call(t, http.StatusCreated, http.MethodPost, "/events?queue=own", `{"a":1}`)
	own := queued.batch(t, http.MethodGet, "/events?queue=own", "")
	if len(own) != 1 || own[0].Validate() != nil || own[0].Source() != "/queues/own" || string(own[0].Data()) != `{"a":1}` {
		t.Errorf("an event of queued's own: %v", own)
	}
}
