package http

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/queued/queued/internal/http/bind"
)

type headerRequest struct {
	Key   idempotencyKey `header:"Idempotency-Key" validate:"min=1,max=8"`
	Plain string         `header:"X-Plain" validate:"max=3"`
}

func decodeHeader(header http.Header) (headerRequest, error) {
	var req headerRequest
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header = header
	err := bind.New[headerRequest](testLimits).Decode(httptest.NewRecorder(), r, &req)
	return req, err
}

func TestIdempotencyKeyIsTakenInQuotesAndWithout(t *testing.T) {
	t.Parallel()
	for sent, want := range map[string]string{
		`abc`:       `abc`,
		`"abc"`:     `abc`,
		` "a b" `:   `a b`,
		`"a\"\\b"`:  `a"\b`,
		`a"b`:       `a"b`,
		`a, b`:      `a, b`,
		`"abc`:      "invalid_parameter\nIdempotency-Key must be a string in quotes or without any, not \"\\\"abc\"",
		`"abc"x`:    "invalid_parameter\nIdempotency-Key must be a string in quotes or without any, not \"\\\"abc\\\"x\"",
		`"a\bc"`:    "invalid_parameter\nIdempotency-Key must be a string in quotes or without any, not \"\\\"a\\\\bc\\\"\"",
		`"abc\`:     "invalid_parameter\nIdempotency-Key must be a string in quotes or without any, not \"\\\"abc\\\\\"",
		`""`:        "invalid_parameter\nIdempotency-Key must not be empty",
		``:          "invalid_parameter\nIdempotency-Key must not be empty",
		`123456789`: "invalid_parameter\nIdempotency-Key must be at most 8 characters long",
		"\xc3\xa4":  "invalid_parameter\nIdempotency-Key must be printable ASCII characters",
		"a\x00b":    "invalid_parameter\nIdempotency-Key must not contain a NUL character",
	} {
		req, err := decodeHeader(http.Header{"Idempotency-Key": {sent}})
		got := string(req.Key)
		if err != nil {
			got = bad(err)
		}
		if got != want {
			t.Errorf("%q: got %q, want %q", sent, got, want)
		}
	}
}

func TestHeadersAreFieldsLikeOthers(t *testing.T) {
	t.Parallel()
	req, err := decodeHeader(http.Header{"X-Plain": {"a"}})
	if err != nil || req.Plain != "a" {
		t.Fatalf("got %+v, %v", req, err)
	}
	if _, err := decodeHeader(http.Header{"X-Plain": {"a", "b"}}); bad(err) != "invalid_parameter\nX-Plain must be given once" {
		t.Errorf("got %s", bad(err))
	}
	if _, err := decodeHeader(http.Header{"X-Plain": {"abcd"}}); bad(err) != "invalid_parameter\nX-Plain must be at most 3 characters long" {
		t.Errorf("got %s", bad(err))
	}
}

type changeRequest struct {
	Text **string       `json:"text" validate:"min=2"`
	N    **int          `json:"n" validate:"min=1"`
	Wait *time.Duration `json:"wait"`
}

func TestChangeTellsWhatIsNotGivenFromNull(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{}`:                     "",
		`{"text":null,"n":null}`: "text:null n:null ",
		`{"text":"ab","n":2}`:    "text:ab n:2 ",
		`{"wait":"90s"}`:         "wait:1m30s ",
		`{"text":"a","n":0}`:     "validation_failed\n#/text must be at least 2 characters long\n#/n must be at least 1",
		`{"text":1,"n":"2"}`:     "validation_failed\n#/text must be a string, not 1\n#/n must be an integer, not \"2\"",
		`{"wait":null}`:          `validation_failed` + "\n" + `#/wait must be a duration such as "90s" or "10m", not null`,
	} {
		req, err := decodeAs[changeRequest]("/", body)
		got := said("text", req.Text) + said("n", req.N)
		if req.Wait != nil {
			got += "wait:" + req.Wait.String() + " "
		}
		if err != nil {
			got = bad(err)
		}
		if got != want {
			t.Errorf("%s: got %s, want %s", body, got, want)
		}
	}
}

func said[T any](name string, c **T) string {
	switch {
	case c == nil:
		return ""
	case *c == nil:
		return name + ":null "
	default:
		return fmt.Sprintf("%s:%v ", name, **c)
	}
}
