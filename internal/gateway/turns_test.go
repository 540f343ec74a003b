package gateway

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestKeysOfQueuesOnAllCellsMeetTheirFirstsWhenCellsComeAndGo(t *testing.T) {
	t.Parallel()
	const retention = time.Hour
	for name, test := range map[string]struct {
		takesNew bool          // of cell 2, since the change
		since    time.Duration // the change
		hasKeys  bool          // cell 2, of keys that are used for the first time
		asks     bool
	}{
		"a cell that came just now":            {true, retention / 2, false, false},
		"a cell that came a while ago":         {true, retention * 3 / 2, true, true},
		"a cell that came long ago":            {true, retention * 3, true, false},
		"a cell that is going":                 {false, retention / 2, true, false},
		"a cell that is empty of keys by now":  {false, retention * 3 / 2, false, true},
		"a cell that has been gone for longer": {false, retention * 3, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := newKeyedCells(t, 3)
			homeCell := all.cells[0]
			homeCell.kept = retention
			for i := range 3 {
				l := listed{Cell: i, TakesNew: true, Turns: []turn{{time.Unix(0, 0), true}}}
				if i == 2 {
					l.TakesNew, l.Turns = test.takesNew, []turn{{time.Now().Add(-test.since), test.takesNew}}
				}
				homeCell.listed = append(homeCell.listed, l)
			}
			homeCell.put(placement{Queue: "wide"})
			homeCell.put(placement{Queue: "left", Cells: []int{1}, Keys: &keys{Until: time.Now().Add(retention)}})
			e := setup(t, nil, all.fakes()...)
			before, after := cellSet{0, 1}, cellSet{0, 1, 2}
			if !test.takesNew {
				before, after = after, before
			}
			firsts := map[string]int64{}
			for _, queue := range []string{"wide", "left"} {
				// Keys that were used before the change, and those of now.
				for i := range 30 {
					name := fmt.Sprint("old", i)
					at, err := e.gateway.keyCell(queue, name, before)
					if err != nil {
						t.Fatal(err)
					}
					if test.since < 2*retention {
						firsts[queue+" "+name], _ = all.cells[at.number].insertOne(queue + " " + name)
					}
				}
			}
			used := 0
			for _, queue := range []string{"wide", "left"} {
				for i := range 30 {
					for _, key := range []string{fmt.Sprint("old", i), fmt.Sprint("new", i)} {
						for range 2 {
							got := answeredIDs(t, e.call("POST", "/events?queue="+queue+"&key="+key, "{}"), 0)[0]
							name := queue + " " + key
							if first, isThere := firsts[name]; isThere && got != first {
								t.Errorf("the first of %s is %d, and its repetition %d", name, first, got)
							}
							if firsts[name] = got; strings.HasPrefix(key, "new") && got>>idBits == 2 {
								used++
							}
						}
					}
				}
			}
			if (used > 0) != test.hasKeys {
				t.Errorf("cell 2 has got %d of the new keys", used)
			}
			asked := 0
			for _, k := range all.cells {
				k.mu.Lock()
				asked += k.asked
				k.mu.Unlock()
			}
			if (asked > 0) != test.asks {
				t.Errorf("%d keys were asked for", asked)
			}
			if set := e.gateway.allAt(time.Now()); len(set) != len(after) {
				t.Errorf("all cells are %v", set)
			}
		})
	}
}

func TestCellOfTheSettingsIsListedAsOneThatWasThere(t *testing.T) {
	t.Parallel()
	fakes := []*fakeCell{newFakeCell(t, 0), newFakeCell(t, 1)}
	fakes[0].mux.HandleFunc("PUT /cells/{number}", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = w.Write(body)
	})
	e := setup(t, nil, fakes...)
	own := "Authorization: Bearer " + gatewayKey
	url := fmt.Sprintf(`{"url":%q}`, fakes[1].server.URL)
	if got := e.want(200, `"keys":"now"`, "PUT", "/cells/1", url, own, "Content-Type: application/json"); !strings.Contains(got.body, fakes[1].server.URL) {
		t.Errorf("home got %s", got.body)
	}
	for _, body := range []string{`{"takes_new":false}`, `{"keys":"x"}`, `[`} {
		e.want(200, body, "PUT", "/cells/1", body, own, "Content-Type: application/json")
	}
	fakes[0].list(listed{Cell: 1, TakesNew: true, Turns: []turn{}})
	e.until("the gateway knows", func() bool { return e.gateway.cell(1).turns.Load() != nil })
	if got := e.want(200, "", "PUT", "/cells/1", url, own, "Content-Type: application/json"); got.body != url {
		t.Errorf("home got %s of a cell that was listed before", got.body)
	}
}
