package request

import (
	"net/http/httptest"
	"testing"
)

// Media types of CloudEvents.
const structured, batched = "application/cloudevents+json", "application/cloudevents-batch+json"

func TestAcceptSaysWhetherEventsComeAsCloudEvents(t *testing.T) {
	t.Parallel()
	for accept, want := range map[string]bool{
		"": false, "*/*": false, "application/*": false, "application/json": false, "application/cloudevents-batch+json": false, "text/html": false,
		structured: true, "Application/CloudEvents+JSON": true, structured + ", */*": true, structured + "; charset=utf-8": true, "application/json, " + structured: true,
		structured + ";q=0": false, structured + ";q=0.5, application/json": false, structured + ", application/json;q=0.9": true, structured + ";q=0.1, */*;q=0.2": false,
		batched + ", " + structured: true, structured + "x": false,
	} {
		r := httptest.NewRequest("GET", "/", nil)
		if accept != "" {
			r.Header.Set("Accept", accept)
		}
		if got := Prefers(r, structured); got != want {
			t.Errorf("%q: got %v", accept, got)
		}
	}
	r := httptest.NewRequest("GET", "/", nil)
	r.Header["Accept"] = []string{"application/json;q=0.1", structured}
	if !Prefers(r, structured) {
		t.Error("two lines of Accept: got false")
	}
}

//nolint:paralleltest // it counts allocations
func TestRequestForJSONIsNotSlowerThanBefore(t *testing.T) {
	r := httptest.NewRequest("GET", "/", nil)
	for _, accept := range []string{"", "*/*", "application/json, application/problem+json"} {
		r.Header["Accept"] = []string{accept}
		if n := testing.AllocsPerRun(100, func() { Prefers(r, structured) }); n > 0 {
			t.Errorf("%q: %v allocations", accept, n)
		}
	}
}

func TestAcceptSaysWhichFormatAnExportHas(t *testing.T) {
	t.Parallel()
	for accept, want := range map[string]string{
		"": "", "*/*": "", "application/json": "", "text/csv": "csv", "application/x-ndjson": "ndjson", "text/csv, application/x-ndjson": "ndjson",
		"text/csv, application/x-ndjson;q=0.9": "csv", "text/csv;q=0.5, application/json": "",
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Accept", accept)
		if got := ExportFormat(r, ""); got != want {
			t.Errorf("%q asks for %q, want %q", accept, got, want)
		}
		if got := ExportFormat(r, "csv"); got != "csv" {
			t.Errorf("the parameter and %q ask for %q", accept, got)
		}
	}
}
