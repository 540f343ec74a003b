package gateway

import (
	"io"
	"net/http"
	"testing"
)

// What a cell would refuse is refused by one, whatever the gateway makes of the call otherwise.
func TestCallsThatAreWrongAreRefusedByACell(t *testing.T) {
	t.Parallel()
	home, other := newFakeCell(t, 0), newFakeCell(t, 1)
	for _, route := range []string{"POST /claim", "GET /events", "GET /queues", "GET /stats/queues", "GET /history/stats", "POST /history/requeue", "POST /sweep", "POST /queues/{name}/pause"} {
		home.answers(route, http.StatusUnprocessableEntity, `{"code":"validation_failed"}`)
		other.mux.HandleFunc(route, func(w http.ResponseWriter, r *http.Request) {
			t.Errorf("%s %s was asked of the other cell", r.Method, r.URL)
			_, _ = io.WriteString(w, `{"events":[]}`)
		})
	}
	home.put(placement{Queue: "q", Cells: []int{1}})
	e := setup(t, nil, home, other)
	for _, body := range []string{"null", "[]", `{"queue":"q","wait":"61s"}`, `{"queue":"new","wait":"61s"}`, `{"queue":"q","wait":"-1s"}`, `{"queue":"q","wait":5}`, `{"queue":"q","wait":"long"}`} {
		e.want(http.StatusUnprocessableEntity, "validation_failed", "POST", "/claim", body)
	}
	for _, path := range []string{"/history/requeue", "/sweep"} {
		e.want(http.StatusUnprocessableEntity, "validation_failed", "POST", path, "null")
	}
	for _, path := range []string{"/events", "/queues", "/stats/queues", "/history/stats"} {
		for _, query := range []string{"?%zz", "?a;b", "?queue=q&contains=%7"} {
			e.want(http.StatusUnprocessableEntity, "validation_failed", "GET", path+query, "")
		}
	}
	e.want(http.StatusUnprocessableEntity, "validation_failed", "POST", "/queues/q/pause?a;b", "")
}

func TestNumbersOfCellsAreWrittenInOneWay(t *testing.T) {
	t.Parallel()
	home := newFakeCell(t, 0)
	home.answers("PUT /cells/{number}", http.StatusBadRequest, `{"code":"of_home"}`)
	e := setup(t, nil, home, newFakeCell(t, 1))
	for _, number := range []string{"+7", "07", "x", "-1", "256"} {
		e.want(http.StatusBadRequest, "of_home", "PUT", "/cells/"+number, `{"takes_new":true}`, "Authorization: Bearer "+gatewayKey)
	}
}

func TestMoveIntoAQueueThatTheKeyMayNotUseIsRefusedByTheCell(t *testing.T) {
	t.Parallel()
	e, cells := wideCells(t)
	cells[1].answersWith("POST /queues/narrow/move", 403, `{"code":"forbidden","errors":[{"pointer":"#/to"}]}`)
	for _, method := range []string{"POST", "PUT"} {
		cells[0].mux.HandleFunc(method+" /queues/others/placement", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
	}
	e.want(403, "#/to", "POST", "/queues/narrow/move", `{"to":"others"}`)
}
