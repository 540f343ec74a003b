package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/queued/queued/internal/pgtest"
)

// cellOf returns what a program says of its cell.
func (p *program) cellOf(t *testing.T) map[string]any {
	t.Helper()
	return p.want(http.StatusOK, http.MethodGet, "/cell", "").decode(t)
}

func TestOfTwoProcessesThatStartANewDatabaseWithTwoNumbersOneServes(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t) // so that both migrate, too
	programs := make([]*program, 3)
	for i := range programs {
		programs[i] = startProgram(t, nil, []string{"QUEUED_DATABASE_URL=" + db.URL, fmt.Sprintf("QUEUED_CELL=%d", i)})
	}
	serving := -1
	for deadline := time.Now().Add(waitTimeout); ; {
		ended := 0
		for i, p := range programs {
			select {
			case <-p.ended:
				ended++
			default:
				serving = i
			}
		}
		if ended == len(programs)-1 {
			break
		}
		if time.Now().After(deadline) || ended == len(programs) {
			t.Fatalf("%d of %d ended", ended, len(programs))
		}
		time.Sleep(10 * time.Millisecond) //nolint:forbidigo // which of several programs ends is seen by a look
	}
	for i, p := range programs {
		if i == serving {
			continue
		}
		want := fmt.Sprintf("QUEUED_CELL is %d, and the database is cell %d", i, serving)
		if code := p.wait(); code != exitFailure || !strings.Contains(p.output(), want) {
			t.Errorf("exit code %d, want %d and %q", code, exitFailure, want)
		}
	}
	p := programs[serving]
	p.addr, _ = p.waitFor("serving")["addr"].(string)
	if got := p.cellOf(t); got["cell"] != float64(serving) || got["is_home"] != (serving == 0) {
		t.Errorf("cell %d says %v", serving, got)
	}
	if id := p.want(http.StatusCreated, http.MethodPost, "/events", `{}`).decode(t)["id"].(float64); int64(id)>>45 != int64(serving) {
		t.Errorf("cell %d gave out the id %f", serving, id)
	}
}

func TestMigratedDatabaseTakesTheNumberOfItsFirstServer(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	migrated := startProgram(t, []string{"migrate"}, []string{"QUEUED_DATABASE_URL=" + db.URL})
	if code := migrated.wait(); code != exitOK {
		t.Fatalf("exit code %d", code)
	}
	p := serve(t, []string{"serve", "--cell", "7"}, "QUEUED_DATABASE_URL="+db.URL)
	if got := p.cellOf(t); got["cell"] != 7.0 {
		t.Errorf("got %v", got)
	}
	again := startProgram(t, nil, []string{"QUEUED_DATABASE_URL=" + db.URL}) // which is cell 0, for want of a setting
	if code := again.wait(); code != exitFailure || !strings.Contains(again.output(), "QUEUED_CELL is 0, and the database is cell 7") {
		t.Errorf("exit code %d without the setting", code)
	}
}
