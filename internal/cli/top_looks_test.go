package cli_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// topServer answers the looks of top as they come, by what says how: "all", "away" while there are the cells 1 to 3, of which 2 and 3 are away, "broken" or "refused".
func topServer(t *testing.T, looks ...string) string {
	t.Helper()
	var look atomic.Int64
	problem := func(w http.ResponseWriter, status int, code, rest string) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(status)
		_, _ = fmt.Fprintf(w, `{"status":%d,"code":%q,"title":%[2]q%s}`, status, code, rest)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		now := looks[min(int(look.Load()), len(looks)-1)]
		isQueues, cell := strings.HasSuffix(r.URL.Path, "/queues"), strings.HasPrefix(r.URL.Path, "/cells/")
		if cell {
			now = "away"
		}
		if !isQueues && (now != "away" || strings.HasPrefix(r.URL.Path, "/cells/3/")) {
			look.Add(1)
		}
		w.Header().Set("Content-Type", "application/json")
		switch {
		case now == "broken":
			look.Add(1)
			problem(w, http.StatusServiceUnavailable, "database_unavailable", "")
		case now == "refused":
			problem(w, http.StatusUnauthorized, "unauthorized", "")
		case now == "away" && !cell:
			problem(w, http.StatusConflict, "several_cells", `,"cells":[1,2,3]`)
		case cell && !strings.HasPrefix(r.URL.Path, "/cells/1/"):
			problem(w, http.StatusServiceUnavailable, "cell_unavailable", `,"cell":`+r.URL.Path[len("/cells/"):len("/cells/")+1])
		case isQueues && cell:
			_, _ = io.WriteString(w, `{"queues":[{"queue":"mail","ready":7,"scheduled":0,"leased":0,"oldest_ready_age":null}],"next":null}`)
		case isQueues:
			_, _ = io.WriteString(w, `{"queues":[{"queue":"mail","ready":9,"scheduled":0,"leased":0,"oldest_ready_age":null}],"next":null}`)
		default:
			_, _ = io.WriteString(w, `{"processes":[]}`)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func TestTopGoesOnWhileACellOrTheServerIsAway(t *testing.T) {
	t.Parallel()
	url := topServer(t, "all", "away", "broken", "all")
	c := start(t.Context(), t, "", nil, "top", "-n", "4", "-d", "100ms", "-o", "table", "--url", url).want(0)
	shown := strings.Split(strings.TrimSpace(c.stdout.String()), "\nqueued http")
	if len(shown) != 4 || strings.Contains(shown[0]+shown[2], "!") || !strings.Contains(shown[1], "! cell 2 does not answer: what it has is missing here\n! cell 3 does not answer") ||
		!strings.Contains(shown[1], "mail   7      -2") || !strings.Contains(shown[2], "mail   9      +2") {
		t.Errorf("it shows\n%s", c.stdout.String())
	}
	c = start(t.Context(), t, "", nil, "top", "-n", "2", "-d", "100ms", "-o", "jsonl", "--url", topServer(t, "away", "all")).want(0)
	var looks []string
	for decoder := json.NewDecoder(strings.NewReader(c.stdout.String())); decoder.More(); {
		var look struct {
			Queues           []struct{ Ready int }
			UnavailableCells []int `json:"unavailable_cells"`
		}
		if err := decoder.Decode(&look); err != nil {
			t.Fatal(err)
		}
		looks = append(looks, fmt.Sprint(look.Queues, look.UnavailableCells))
	}
	if got := strings.Join(looks, "; "); got != "[{7}] [2 3]; [{9}] []" {
		t.Errorf("it writes %s", got)
	}
	start(t.Context(), t, "", nil, "top", "--url", topServer(t, "broken", "all")).want(0)
	for _, looks := range [][]string{{"broken"}, {"all", "broken"}, {"broken", "all"}, {"all", "refused"}, {"refused"}} {
		c := start(t.Context(), t, "", nil, "top", "-n", "2", "-d", "100ms", "--retry-for", "0s", "--url", topServer(t, looks...))
		if <-c.ended; c.code == 0 {
			t.Errorf("%v: it ends well:\n%s%s", looks, c.stdout.String(), c.stderr.String())
		}
	}
	c = start(t.Context(), t, "", nil, "top", "-n", "9", "-d", "100ms", "-o", "table", "--url", topServer(t, "all", "refused"))
	if <-c.ended; c.code == 0 || strings.Count(c.stdout.String(), "QUEUE") != 1 {
		t.Errorf("after a refusal it goes on:\n%s", c.stdout.String())
	}
}
