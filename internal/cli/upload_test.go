package cli

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queued/queued/client"
)

// connTo returns a client of a server with one handler.
func connTo(t *testing.T, handler http.HandlerFunc) *client.Client {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	conn, err := client.New(client.Config{URL: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

func TestProgressCountsWhatIsStoredAndNotWhatIsRead(t *testing.T) {
	t.Parallel()
	const file = "{\"a\":1}\n{\"a\":2}\n{\"a\":3}\n{\"a\":4}\n"
	u := &upload{name: "events", skip: 1, batch: 1, parallel: 1}
	var reports []string
	u.conn = connTo(t, func(w http.ResponseWriter, _ *http.Request) {
		reports = append(reports, u.report(time.Second, int64(len(file))))
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprint(w, `{"ids":[1]}`)
	})
	if err := u.run(t.Context(), strings.NewReader(file)); err != nil {
		t.Fatal(err)
	}
	reports = append(reports, u.report(time.Second, int64(len(file))))
	want := []string{"0 events, 0/s, 25 % of the file", "1 event, 1/s, 50 % of the file", "2 events, 2/s, 75 % of the file", "3 events, 3/s, 100 % of the file"}
	if !slices.Equal(reports, want) {
		t.Errorf("the reports are %q, want %q", reports, want)
	}
}

// Behind a gateway the keys of a batch may belong to several cells, which take their events each on its own.
func TestBatchForSeveralCellsIsSentEachOnItsOwn(t *testing.T) {
	t.Parallel()
	u := &upload{name: "events", keyPrefix: "k", batch: 10, parallel: 1}
	var calls []string
	u.conn = connTo(t, func(w http.ResponseWriter, r *http.Request) {
		calls = append(calls, r.URL.RequestURI())
		if r.URL.RawQuery == "" {
			w.WriteHeader(http.StatusUnprocessableEntity)
			_, _ = fmt.Fprint(w, `{"code":"batch_not_atomic","status":422}`)
			return
		}
		_, _ = fmt.Fprint(w, `{"results":[{"status":201,"id":1},{"status":503,"code":"cell_unavailable","cell":2,"detail":"away"},{"status":201,"id":3}]}`)
	})
	err := u.run(t.Context(), strings.NewReader("{}\n{}\n{}\n"))
	if err == nil || !strings.HasPrefix(err.Error(), "events:2: ") || u.stored.Load() != 2 {
		t.Errorf("%v, and %d events are stored", err, u.stored.Load())
	}
	if want := []string{"/events/batch", "/events/batch?atomic=false"}; !slices.Equal(calls, want) {
		t.Errorf("the calls were %q", calls)
	}
}

func TestSkippingMoreLinesThanThereAreIsAUsageError(t *testing.T) {
	t.Parallel()
	for skip, want := range map[int64]string{2: "", 3: "--skip is 3, but events has only 2 lines"} {
		u := &upload{name: "events", skip: skip, batch: 1, parallel: 1}
		err := u.run(t.Context(), strings.NewReader("{}\n{}\n"))
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != want || want != "" && ExitCode(err) != 2 {
			t.Errorf("after --skip %d the error is %v, want %q", skip, err, want)
		}
	}
}
