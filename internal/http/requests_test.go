package http

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/queued/queued/internal/body"
	"github.com/queued/queued/internal/http/bind"
	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/schedule"
)

var testLimits = bind.Limits{Body: 1 << 20, Event: 1 << 20, Items: 3, Depth: 64}

// decodeAs decodes a POST of what is sent to target, as the endpoint of a Req does.
func decodeAs[Req any](target, sent string) (Req, error) {
	var req Req
	r := httptest.NewRequest(http.MethodPost, target, strings.NewReader(sent))
	r.SetPathValue("id", "7")
	r.SetPathValue("name", "mail")
	err := bind.New[Req](testLimits).Decode(httptest.NewRecorder(), r, new(body.Hold), &req)
	return req, err
}

// problemText summarizes a problem: its code, then its pointers and details.
func problemText(err error) string {
	if err == nil {
		return "ok"
	}
	p := problem.Of(err)
	lines := []string{p.Type.Code}
	if len(p.Errors) == 0 {
		lines = append(lines, p.Detail)
	}
	for _, e := range p.Errors {
		lines = append(lines, e.Pointer+" "+e.Detail)
	}
	return strings.Join(lines, "\n")
}

func nested(depth int) string {
	return strings.Repeat(`{"a":`, depth-1) + "{}" + strings.Repeat("}", depth-1)
}

func TestEventsAreAcceptedOrRefusedWithAReason(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ body, want string }{
		"an object":                   {`{"a":[1,2.5,-3e2,"x",true,null,{"b":{}}]}`, "ok"},
		"an empty object":             {` {} `, "ok"},
		"escapes":                     {`{"a":"\\u0000 \n \" é 😀 \\\\u0000"}`, "ok"},
		"the deepest nesting":         {nested(64), "ok"},
		"a long number":               {`{"a":` + strings.Repeat("9", 5000) + `}`, "ok"},
		"many small exponents":        {`{"a":[` + strings.Repeat("1e3,", 1000) + `1]}`, "ok"},
		"nothing":                     {``, "invalid_json\nThe body is empty; expected a JSON object."},
		"blanks":                      {" \n", "invalid_json\nThe body is empty; expected a JSON object."},
		"cut off":                     {`{"a":1`, "invalid_json\nThe JSON ends early."},
		"cut off in a string":         {`{"a":"\u12`, "invalid_json\nThe JSON ends early."},
		"no JSON":                     {`a=b`, "invalid_json\nAt byte 0: invalid character 'a' at start of value."},
		"broken within":               {`{"a":[1,}`, "invalid_json\nAt byte 7: invalid character ',' at start of value."},
		"a trailing value":            {`{"a":1} {"b":2}`, "invalid_json\nThe body must be one JSON value, but more follows at byte 8."},
		"trailing junk":               {"{}\n x", "invalid_json\nThe body must be one JSON value, but more follows at byte 4."},
		"a trailing half":             {`{}{`, "invalid_json\nThe body must be one JSON value, but more follows at byte 2."},
		"a duplicate name":            {`{"a":{"b":1,"b":2}}`, "invalid_json\n#/a/b duplicate name"},
		"a duplicate escaped name":    {`{"a":1,"\u0061":2}`, "invalid_json\n#/a duplicate name"},
		"invalid UTF-8":               {"{\"a\":\"\xff\"}", "invalid_json\nAt byte 6: invalid UTF-8."},
		"a control character":         {"{\"a\":\"\x00\"}", `invalid_json` + "\n" + `At byte 6: invalid character '\x00' in string (expecting non-control character).`},
		"a byte order mark":           {"\ufeff{}", "invalid_json\nThe JSON begins with a byte order mark; send it without one."},
		"not a number":                {`{"a":NaN}`, "invalid_json\nAt byte 5: invalid character 'N' at start of value."},
		"a leading zero":              {`{"a":01}`, "invalid_json\nAt byte 6: invalid character '1' after object value (expecting ',' or '}')."},
		"an array":                    {`[{"a":1}]`, "validation_failed\n# must be a JSON object, not [{\"a\":1}]"},
		"a string":                    {`"x"`, "validation_failed\n# must be a JSON object, not \"x\""},
		"null":                        {`null`, "validation_failed\n# must be a JSON object, not null"},
		"NUL in a string":             {`{"a":{"b":["x\u0000"]}}`, "unrepresentable\n#/a/b/0 contains \\u0000, which PostgreSQL cannot store"},
		"NUL in a name":               {`{"\u0000":1}`, "unrepresentable\n#/%00 contains \\u0000, which PostgreSQL cannot store"},
		"NUL after a backslash":       {`{"a":"\\\u0000"}`, "unrepresentable\n#/a contains \\u0000, which PostgreSQL cannot store"},
		"a lone high surrogate":       {`{"a":"\ud800"}`, "unrepresentable\n#/a contains a lone surrogate, which UTF-8 cannot encode"},
		"a lone low surrogate":        {`{"a":"\uDC00x"}`, "unrepresentable\n#/a contains a lone surrogate, which UTF-8 cannot encode"},
		"half a pair":                 {`{"a":"\ud800\u0041"}`, "unrepresentable\n#/a contains a lone surrogate, which UTF-8 cannot encode"},
		"a surrogate in a name":       {`{"x":{"\udc00":1}}`, "unrepresentable\n#/x contains a lone surrogate, which UTF-8 cannot encode"},
		"too deep":                    {nested(65), "too_deep\n#" + strings.Repeat("/a", 64) + " must be nested at most 64 levels deep"},
		"too deep in arrays":          {`{"a":` + strings.Repeat("[", 100_000), "too_deep\n#/a" + strings.Repeat("/0", 63) + " must be nested at most 64 levels deep"},
		"a huge exponent":             {`{"a":1e999999999999999999999}`, "unrepresentable\n#/a is a number with too many digits when written out"},
		"a tiny exponent":             {`{"a":{"b":-1.5E-999999999999}}`, "unrepresentable\n#/a/b is a number with too many digits when written out"},
		"an exponent beyond reason":   {`{"a":1e1000}`, "unrepresentable\n#/a is a number with too many digits when written out"},
		"more digits than numeric's":  {`{"a":` + strings.Repeat("9", 131_073) + `}`, "unrepresentable\n#/a is a number with too many digits when written out"},
		"a fraction beyond numeric's": {`{"a":0.` + strings.Repeat("9", 16_384) + `}`, "unrepresentable\n#/a is a number with too many digits when written out"},
		"exponents beyond the limit": {
			`{"a":[` + strings.Repeat("1e999,", 2000) + `1]}`,
			"unrepresentable\n#/a/1041 is the number with which the body, its numbers written out, exceeds 1048576 bytes",
		},
		"a long name in the way": {
			`{"` + strings.Repeat("é", 1000) + `":"\u0000"}`,
			"unrepresentable\n#/" + strings.Repeat("%C3%A9", 127) + "%E2%80%A6 contains \\u0000, which PostgreSQL cannot store",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			req, err := decodeAs[insertRequest]("/events", tc.body)
			if diff := cmp.Diff(tc.want, problemText(err)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if err == nil && string(req.Event) != strings.TrimSpace(tc.body) {
				t.Errorf("the event was decoded as %s", req.Event)
			}
		})
	}
}

func TestBatchProblemsPointToTheirEvent(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ body, want string }{
		"none":            {`{"events":[]}`, "validation_failed\n#/events must not be empty"},
		"no member":       {`{}`, "validation_failed\n#/events is required"},
		"no body":         {``, "invalid_json\nThe body is empty; expected a JSON object with events."},
		"an array":        {`[]`, "validation_failed\n# must be a JSON object, not []"},
		"null":            {`{"events":null}`, "validation_failed\n#/events must be an array, not null"},
		"items of a sort": {`{"events":[1,null]}`, "validation_failed\n#/events/0 must be a JSON object, not 1\n#/events/1 must be a JSON object, not null"},
		"too many":        {`{"events":[{"event":{}},{"event":{}},{"event":{}},{"event":{}}]}`, "batch_too_large\n#/events must be at most 3 elements long"},
		"every fault": {
			`{"events":[{"event":{},"queue":"a b"},{"event":[],"delay":"10 minutes","vt":null},{"queue":"x","evnt":{}}],"x":[1]}`,
			"validation_failed\n" +
				"#/events/0/queue must be 1 to 128 of A–Z a–z 0–9 . _ : -\n" +
				"#/events/1/event must be a JSON object, not []\n" +
				`#/events/1/delay must be a duration such as "90s", "10m" or "7d", not "10 minutes"` + "\n" +
				`#/events/1/vt must be an RFC 3339 time such as "2026-02-03T04:05:06Z", not null` + "\n" +
				"#/events/2/evnt unknown field; expected one of event, queue, delay, vt, type, source, priority, key, group, max_attempts, expires_at, event_ts, on_duplicate, key_until, max_wait, meta\n" +
				"#/events/2/event is required\n" +
				"#/x unknown field; expected one of events",
		},
		"delay and vt":      {`{"events":[{"event":{},"delay":"1s","vt":"2026-01-01T00:00:00Z"}]}`, "validation_failed\n#/events/0/vt must not be given together with delay"},
		"a deep one":        {`{"events":[{"event":{}},{"event":` + nested(65) + `}]}`, "too_deep\n#/events/1/event" + strings.Repeat("/a", 64) + " must be nested at most 64 levels deep"},
		"NUL in the third":  {`{"events":[{"event":{}},{"event":{}},{"event":{"a":{"b":"\u0000"}}}]}`, "unrepresentable\n#/events/2/event/a/b contains \\u0000, which PostgreSQL cannot store"},
		"a duplicate":       {`{"events":[{"event":{}, "event":{}}]}`, "invalid_json\n#/events/0/event duplicate name"},
		"broken":            {`{"events":[{"event":{}},]}`, "invalid_json\nAt byte 23: invalid character ',' at start of value."},
		"broken in between": {`{"events":[{"event":{}}}`, "invalid_json\nAt byte 23: invalid character '}' after array element (expecting ',' or ']')."},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := decodeAs[insertBatchRequest]("/events/batch", tc.body)
			if diff := cmp.Diff(tc.want, problemText(err)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestOptionsAreDecodedWithTheirDefaults(t *testing.T) {
	t.Parallel()
	defaults := claimRequest{claimOptions: claimOptions{Queue: "default", Limit: 1, Order: "fifo"}}
	for name, tc := range map[string]struct {
		body string
		want claimRequest
	}{
		"no body":    {"", defaults},
		"no members": {"{}", defaults},
		"all members": {
			`{"queue":"a:b","limit":1000,"max_attempts":9,"invisible_for":"1h30m","wait":"60s","order":"random","types":["a","b"],"exclude_ids":[3,5],"worker":"w","acks":[{"id":1,"receipt":"r","result":[ 2 ]}]}`,
			claimRequest{claimOptions: claimOptions{"a:b", 1000, 9, 90 * time.Minute, new(time.Minute), "random", []string{"a", "b"}, []int64{3, 5}, "w", []ackItem{{1, "r", bind.Value(`[ 2 ]`)}}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := decodeAs[claimRequest]("/claim", tc.body)
			if err != nil {
				t.Fatal(problemText(err))
			}
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(claimRequest{})); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestOptionsOutOfRangeAreRefused(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ body, want string }{
		"limit 0":           {`{"limit":0}`, "#/limit must be at least 1"},
		"limit negative":    {`{"limit":-1}`, "#/limit must be at least 1"},
		"limit too large":   {`{"limit":1001}`, "#/limit must be at most 1000"},
		"limit huge":        {`{"limit":99999999999999999999}`, "#/limit must be at most 9223372036854775807"},
		"limit minus huge":  {`{"limit":-99999999999999999999}`, "#/limit must be at least -9223372036854775808"},
		"limit a fraction":  {`{"limit":1.0}`, "#/limit must be an integer, not 1.0"},
		"limit exponential": {`{"limit":1e2}`, "#/limit must be an integer, not 1e2"},
		"limit in a string": {`{"limit":"5"}`, `#/limit must be an integer, not "5"`},
		"limit null":        {`{"limit":null}`, "#/limit must be an integer, not null"},
		"limit a list":      {`{"limit":[[1]]}`, "#/limit must be an integer, not [[1]]"},
		"attempts too many": {`{"max_attempts":2147483648}`, "#/max_attempts must be at most 2147483647"},
		"attempts 0":        {`{"max_attempts":0}`, "#/max_attempts must be at least 1"},
		"wait a number":     {`{"wait":10}`, `#/wait must be a duration such as "90s", "10m" or "7d", not 10`},
		"wait without unit": {`{"wait":"10"}`, `#/wait must be a duration such as "90s", "10m" or "7d", not "10"`},
		"wait in words":     {`{"wait":"10 minutes"}`, `#/wait must be a duration such as "90s", "10m" or "7d", not "10 minutes"`},
		"wait too long":     {`{"wait":"61s"}`, "#/wait must be at most 1m0s"},
		"wait negative":     {`{"wait":"-1s"}`, "#/wait must be at least 0s"},
		"wait overflowing":  {`{"wait":"9999999999h"}`, `#/wait "9999999999h" is out of range: a duration is at most 106751d`},
		"lease of nothing":  {`{"invisible_for":"0s"}`, "#/invisible_for must be at least 1µs"},
		"lease for ever":    {`{"invisible_for":"8761h"}`, "#/invisible_for must be at most 8760h0m0s"},
		"lease in days":     {`{"invisible_for":"366d"}`, "#/invisible_for must be at most 8760h0m0s"},
		"unknown order":     {`{"order":"lifo"}`, "#/order must be one of fifo, random"},
		"empty queue":       {`{"queue":""}`, "#/queue must be 1 to 128 of A–Z a–z 0–9 . _ : -"},
		"long queue":        {`{"queue":"` + strings.Repeat("q", 129) + `"}`, "#/queue must be 1 to 128 of A–Z a–z 0–9 . _ : -"},
		"queue of a step":   {`{"queue":".."}`, "#/queue must not be . or .., which are steps of a path"},
		"queue with a line": {`{"queue":"a\n"}`, "#/queue must be 1 to 128 of A–Z a–z 0–9 . _ : -"},
		"unknown":           {`{"lease":"1m","Limit":1}`, "#/lease unknown field; expected one of queue, limit, max_attempts, invisible_for, wait, order, types, exclude_ids, worker, acks\n#/Limit unknown field; expected one of queue, limit, max_attempts, invisible_for, wait, order, types, exclude_ids, worker, acks"},
		"types no list":     {`{"types":"a"}`, `#/types must be an array, not "a"`},
		"types of another":  {`{"types":["a",1,null,{}]}`, "#/types/1 must be a string, not 1\n#/types/2 must be a string, not null\n#/types/3 must be a string, not {}"},
		"an empty type":     {`{"types":["a",""]}`, "#/types/1 must not be empty"},
		"a long type":       {`{"types":["` + strings.Repeat("é", 256) + `"]}`, "#/types/0 must be at most 255 characters long"},
		"too many types":    {`{"types":["a"` + strings.Repeat(`,"a"`, 100) + `]}`, "#/types must be at most 100 elements long"},
		"too many ids":      {`{"exclude_ids":[1` + strings.Repeat(`,1`, 1000) + `]}`, "#/exclude_ids must be at most 1000 elements long"},
		"an id of nothing":  {`{"exclude_ids":[1,0,-1,"2",1.5]}`, "#/exclude_ids/1 must be at least 1\n#/exclude_ids/2 must be at least 1\n#/exclude_ids/3 must be an integer, not \"2\"\n#/exclude_ids/4 must be an integer, not 1.5"},
		"an empty worker":   {`{"worker":""}`, "#/worker must not be empty"},
		"two at once":       {`{"limit":0,"queue":7}`, "#/limit must be at least 1\n#/queue must be a string, not 7"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := decodeAs[claimRequest]("/claim", tc.body)
			if diff := cmp.Diff("validation_failed\n"+tc.want, problemText(err)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestDurationsMayHaveDaysAndWeeks(t *testing.T) {
	t.Parallel()
	claim, err := decodeAs[claimRequest]("/claim", `{"invisible_for":"1d12h","wait":"0d"}`)
	if err != nil || claim.InvisibleFor != 36*time.Hour || claim.Wait == nil || *claim.Wait != 0 {
		t.Errorf("in a body it is %+v, %s", claim, problemText(err))
	}
	post, err := decodeAs[insertRequest]("/events?delay=1w", `{}`)
	if err != nil || *post.Delay != 7*24*time.Hour {
		t.Errorf("in a query it is %+v, %s", post, problemText(err))
	}
}

func TestListsAreDecodedUnchanged(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{"types":[],"exclude_ids":[ ]}`: "ok",
		`{"types":["a" , "b"]}`:          "ok",
		`{"types":["a",]}`:               "invalid_json\nAt byte 13: invalid character ',' at start of value.",
		`{"types":["a"`:                  "invalid_json\nThe JSON ends early.",
		`{"types":["a"}`:                 "invalid_json\nAt byte 13: invalid character '}' after array element (expecting ',' or ']').",
		`{"types":["a\u0000"]}`:          "unrepresentable\n#/types/0 contains \\u0000, which PostgreSQL cannot store",
	} {
		if _, err := decodeAs[claimRequest]("/claim", body); problemText(err) != want {
			t.Errorf("%s: got %s, want %s", body, problemText(err), want)
		}
	}
}

func TestPolicyIsDecodedOrRefusedWithAReason(t *testing.T) {
	t.Parallel()
	req, err := decodeAs[putQueueRequest]("/queues/mail", `{"max_attempts":5,"backoff":{"kind":"linear","base":"0s","factor":1.5,"max":"1h","jitter":0.25},"paused":true,"history_retention":null}`)
	if err != nil {
		t.Fatal(problemText(err))
	}
	if b := req.Backoff; *req.MaxAttempts != 5 || !req.Paused || b.Kind != "linear" || b.Base != 0 || *b.Factor != 1.5 || *b.Max != time.Hour || b.Jitter != 0.25 {
		t.Errorf("got %+v, backoff %+v", req, req.Backoff)
	}
	for body, want := range map[string]string{
		``:                   "ok",
		`{"backoff":null}`:   "ok",
		`{"backoff":[]}`:     "validation_failed\n#/backoff must be a JSON object, not []",
		`{"backoff":"none"}`: "validation_failed\n#/backoff must be a JSON object, not \"none\"",
		`{"backoff":{}}`:     "validation_failed\n#/backoff/kind is required\n#/backoff/base is required",
		`{"backoff":{"kind":"cubic","base":5,"step":1}}`: "validation_failed\n#/backoff/kind must be one of constant, linear, exponential\n" +
			`#/backoff/base must be a duration such as "90s", "10m" or "7d", not 5` + "\n#/backoff/step unknown field; expected one of kind, base, factor, max, jitter",
		`{"backoff":{"kind":"linear","base":"1s","factor":0.5,"jitter":1.5}}`:      "validation_failed\n#/backoff/factor must be at least 1\n#/backoff/jitter must be at most 1",
		`{"backoff":{"kind":"linear","base":"1s","factor":1e999,"jitter":-1e999}}`: "validation_failed\n#/backoff/factor must be at most 1000\n#/backoff/jitter must be at least 0",
		`{"backoff":{"kind":"linear","base":"1s","factor":"2"}}`:                   "validation_failed\n#/backoff/factor must be a number, not \"2\"",
		`{"backoff":{"kind":"linear"`:                                              "invalid_json\nThe JSON ends early.",
		`{"max_attempts":0,"invisible_for":"0s","history_retention":"1ms"}`:        "validation_failed\n#/max_attempts must be at least 1\n#/invisible_for must be at least 1µs\n#/history_retention must be at least 1s",
		`{"paused":null}`: "validation_failed\n#/paused must be true or false, not null",
	} {
		if _, err := decodeAs[putQueueRequest]("/queues/mail", body); problemText(err) != want {
			t.Errorf("%s: got %s, want %s", body, problemText(err), want)
		}
	}
}

func TestResultsAreAnyJSONThatPostgresStores(t *testing.T) {
	t.Parallel()
	for _, value := range []string{`null`, `true`, `-1.50`, `"a\"b"`, `[1, {"a": []}]`, `{}`, `{"a": {"b": [null]}}`, `"` + strings.Repeat("x", bind.MaxValue-2) + `"`} {
		req, err := decodeAs[ackWithResultRequest]("/events/7/ack", `{ "result" : `+value+` , "receipt":"x"}`)
		if err != nil || string(req.Result) != value {
			t.Errorf("%.100s: got %.100s, %s", value, req.Result, problemText(err))
		}
	}
	for body, want := range map[string]string{
		`{"result":}`:                   "invalid_json\nAt byte 10: missing value after object name.",
		`{"result":[1}`:                 "invalid_json\nAt byte 12: invalid character '}' after array element (expecting ',' or ']').",
		`{"result":{"a":1`:              "invalid_json\nThe JSON ends early.",
		`{"result":{"a":1,"a":2}}`:      "invalid_json\n#/result/a duplicate name",
		`{"result":"\u0000"}`:           "unrepresentable\n#/result contains \\u0000, which PostgreSQL cannot store",
		`{"result":[1e1001]}`:           "unrepresentable\n#/result/0 is a number with too many digits when written out",
		`{"result":` + nested(64) + `}`: "ok",
		`{"result":` + nested(65) + `}`: "too_deep\n#/result" + strings.Repeat("/a", 64) + " must be nested at most 64 levels deep",
		`{"result":"` + strings.Repeat("x", bind.MaxValue-1) + `"}`: "validation_failed\n#/result must be at most 65536 bytes long, not 65537",
	} {
		if _, err := decodeAs[ackWithResultRequest]("/events/7/ack", body); problemText(err) != want {
			t.Errorf("%.100s: got %s, want %s", body, problemText(err), want)
		}
	}
	if req, err := decodeAs[ackWithResultRequest]("/events/7/ack", ""); err != nil || req.Result != nil {
		t.Errorf("without a result: got %q, %s", req.Result, problemText(err))
	}
}

func TestLeaseRequestsRequireAReceipt(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ body, want string }{
		"fine":           {`{"receipt":"7.1.2","error":"a\nb","delay":"0s","final":true}`, "ok"},
		"none":           {`{}`, "validation_failed\n#/receipt is required"},
		"no body":        {``, "invalid_json\nThe body is empty; expected a JSON object with receipt."},
		"empty":          {`{"receipt":""}`, "validation_failed\n#/receipt must not be empty"},
		"negative delay": {`{"receipt":"x","delay":"-1ns"}`, "validation_failed\n#/delay must be at least 0s"},
		"long error":     {`{"receipt":"x","error":"` + strings.Repeat("é", 65537) + `"}`, "validation_failed\n#/error must be at most 65536 characters long"},
		"NUL in error":   {`{"receipt":"x","error":"a\u0000"}`, "unrepresentable\n#/error contains \\u0000, which PostgreSQL cannot store"},
		"final in words": {`{"receipt":"x","final":"yes"}`, `validation_failed` + "\n" + `#/final must be true or false, not "yes"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := decodeAs[nackRequest]("/events/7/nack", tc.body)
			if diff := cmp.Diff(tc.want, problemText(err)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestSweepWithNullAgeSweepsByAttemptsOnly(t *testing.T) {
	t.Parallel()
	hour := time.Hour
	for body, want := range map[string]*time.Duration{``: &hour, `{}`: &hour, `{"max_vt_age":null}`: nil} {
		got, err := decodeAs[sweepRequest]("/sweep", body)
		if err != nil {
			t.Fatal(problemText(err))
		}
		if diff := cmp.Diff(want, got.MaxVTAge); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", body, diff)
		}
	}
}

func TestRequeueByFilterRequiresAFilter(t *testing.T) {
	t.Parallel()
	const none = "validation_failed\n# must have a filter: at least one of queue, outcome, from, to, finished_from, finished_to, contains, id, type, source, worker, min_duration, meta, cause"
	for body, want := range map[string]string{
		``:                           none,
		`{}`:                         none,
		`{"dry_run":true,"limit":5}`: none,
		`{"contains":{}}`:            "ok",
		`{"outcome":"failed"}`:       "ok",
		`{"id":0}`:                   "validation_failed\n#/id must be at least 1",
		`{"from":"2026-01-02T00:00:00Z","to":"2026-01-02T01:00:00+01:00"}`: "validation_failed\n#/from must be before to",
	} {
		_, err := decodeAs[requeueMatchingRequest]("/history/requeue", body)
		if diff := cmp.Diff(want, problemText(err)); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", body, diff)
		}
	}
}

func TestOnlyTheFirstFieldErrorsAreListed(t *testing.T) {
	t.Parallel()
	_, err := decodeAs[claimRequest]("/claim", `{`+manyUnknown(1000)+`}`)
	if got := len(problem.Of(err).Errors); got != problem.MaxFieldErrors {
		t.Errorf("%d errors are listed, want %d", got, problem.MaxFieldErrors)
	}
}

func manyUnknown(n int) string {
	var members []string
	for i := range n {
		members = append(members, `"x`+strings.Repeat("y", i)+`":1`)
	}
	return strings.Join(members, ",")
}

type headerRequest struct {
	Key   idempotencyKey `header:"Idempotency-Key" validate:"min=1,max=8"`
	Plain string         `header:"X-Plain" validate:"max=3"`
}

func decodeHeader(header http.Header) (headerRequest, error) {
	var req headerRequest
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header = header
	err := bind.New[headerRequest](testLimits).Decode(httptest.NewRecorder(), r, new(body.Hold), &req)
	return req, err
}

func TestIdempotencyKeyIsAcceptedWithAndWithoutQuotes(t *testing.T) {
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
			got = problemText(err)
		}
		if got != want {
			t.Errorf("%q: got %q, want %q", sent, got, want)
		}
	}
}

func TestHeadersAreValidatedLikeOtherFields(t *testing.T) {
	t.Parallel()
	req, err := decodeHeader(http.Header{"X-Plain": {"a"}})
	if err != nil || req.Plain != "a" {
		t.Fatalf("got %+v, %v", req, err)
	}
	if _, err := decodeHeader(http.Header{"X-Plain": {"a", "b"}}); problemText(err) != "invalid_parameter\nX-Plain must be given once" {
		t.Errorf("got %s", problemText(err))
	}
	if _, err := decodeHeader(http.Header{"X-Plain": {"abcd"}}); problemText(err) != "invalid_parameter\nX-Plain must be at most 3 characters long" {
		t.Errorf("got %s", problemText(err))
	}
}

type changeRequest struct {
	Text **string       `json:"text" null:"zero" validate:"min=2"`
	N    **int          `json:"n" null:"zero" validate:"min=1"`
	Wait *time.Duration `json:"wait"`
}

func TestPatchDistinguishesAbsentFieldsFromNull(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{}`:                     "",
		`{"text":null,"n":null}`: "text:null n:null ",
		`{"text":"ab","n":2}`:    "text:ab n:2 ",
		`{"wait":"90s"}`:         "wait:1m30s ",
		`{"text":"a","n":0}`:     "validation_failed\n#/text must be at least 2 characters long\n#/n must be at least 1",
		`{"text":1,"n":"2"}`:     "validation_failed\n#/text must be a string, not 1\n#/n must be an integer, not \"2\"",
		`{"wait":null}`:          `validation_failed` + "\n" + `#/wait must be a duration such as "90s", "10m" or "7d", not null`,
	} {
		req, err := decodeAs[changeRequest]("/", body)
		got := said("text", req.Text) + said("n", req.N)
		if req.Wait != nil {
			got += "wait:" + req.Wait.String() + " "
		}
		if err != nil {
			got = problemText(err)
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

type preconditionRequest struct {
	IfMatch *precondition `header:"If-Match"`
}

func decodePrecondition(header http.Header) (preconditionRequest, error) {
	var req preconditionRequest
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header = header
	err := bind.New[preconditionRequest](testLimits).Decode(httptest.NewRecorder(), r, new(body.Hold), &req)
	return req, err
}

func TestIfMatchIsParsedIntoVersions(t *testing.T) {
	t.Parallel()
	tooMany := strings.Repeat(`"1",`, maxVersions) + `"3"`
	for sent, want := range map[string]string{
		``:               "any",
		`*`:              "any that exists",
		` * `:            "any that exists",
		`"3"`:            "[3]",
		`W/"3"`:          "[3]",
		`"1", "3","4"`:   "[1 3 4]",
		`"1" , "2"`:      "[1 2]",
		`"x"`:            "[]",
		`"03", "+3", ""`: "[]",
		`3`:              "invalid_parameter",
		`"3`:             "invalid_parameter",
		`"3",`:           "invalid_parameter",
		`"3" "4"`:        "invalid_parameter",
		`*, "3"`:         "invalid_parameter",
		`w/"3"`:          "invalid_parameter",
		tooMany:          "invalid_parameter",
		"\"1\"\n\"3\"":   "[1 3]", // in two header lines
	} {
		header := http.Header{"If-Match": strings.Split(sent, "\n")}
		if sent == "" {
			header = nil
		}
		req, err := decodePrecondition(header)
		got := fmt.Sprint(req.IfMatch.versions())
		switch {
		case err != nil:
			got, _, _ = strings.Cut(problemText(err), "\n")
		case req.IfMatch.isAny():
			got = "any that exists"
		case req.IfMatch.versions() == nil:
			got = "any"
		}
		if got != want {
			t.Errorf("If-Match: %.40s: got %s, want %s", sent, got, want)
		}
	}
}

type momentRequest struct {
	At **schedule.Moment `json:"at" null:"zero"`
}

func TestMomentIsALocalTimeOrAnInstant(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{"at":"2027-03-28T09:00:00"}`:       "2027-03-28T09:00:00",
		`{"at":"2027-03-28T09:00"}`:          "2027-03-28T09:00:00",
		`{"at":"2027-03-28T09:00:00Z"}`:      "2027-03-28T09:00:00Z",
		`{"at":"2027-03-28T09:00:00+02:00"}`: "2027-03-28T07:00:00Z",
		`{"at":null}`:                        "null",
		`{}`:                                 "",
		`{"at":"9:00"}`:                      "validation_failed\n#/at must be a local date-time like 2027-03-28T09:00:00, or an instant like 2027-03-28T07:00:00Z, not \"9:00\"",
		`{"at":5}`:                           `validation_failed` + "\n" + `#/at must be a string, not 5`,
	} {
		req, err := decodeAs[momentRequest]("/", body)
		got := ""
		switch {
		case err != nil:
			got = problemText(err)
		case req.At != nil && *req.At != nil:
			got = (*req.At).String()
		case req.At != nil:
			got = "null"
		}
		if got != want {
			t.Errorf("%s: got %s, want %s", body, got, want)
		}
	}
}
