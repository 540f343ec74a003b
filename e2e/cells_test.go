package e2e_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// TestPagesOfCellsWorkInABrowser looks at the pages that there are behind a gateway alone, and places a queue with the form, without scripts.
func TestPagesOfCellsWorkInABrowser(t *testing.T) {
	t.Parallel()
	findBrowser(t)
	source, err := os.ReadFile("../internal/http/pages/cells.go")
	if err != nil {
		t.Fatal(err)
	}
	routes := regexp.MustCompile(`mux\.(?:Get|Post)\(Prefix\+"([^"]*)"`).FindAllStringSubmatch(string(source), -1)
	if got := fmt.Sprint(routes); len(routes) != 3 || !strings.Contains(got, "cells") || strings.Count(got, "queues/{name}/placement") != 4 {
		t.Errorf("internal/http/pages/cells.go has the routes %s, which are not those of this test", got)
	}
	program := build(t)
	var cells []*process
	for number := range 3 {
		cells = append(cells, start(t, program, newDatabase(t), freeAddress(t), "QUEUED_API_KEY="+adminKey, fmt.Sprintf("QUEUED_CELL=%d", number)))
	}
	p := startGateway(t, program, freeAddress(t), cells, "QUEUED_KEY="+adminKey)
	p.key = adminKey
	p.request(t, "PUT", "/queues/mail/placement", `{"cells":[1]}`)
	for range 3 {
		p.request(t, "POST", "/events?queue=mail", `{}`)
	}
	p.request(t, "PUT", "/queues/"+longest+"/placement", `{"cells":[0,1,2]}`)
	p.request(t, "POST", "/events?queue="+longest, `{}`)
	placed := func(queue, want string) {
		t.Helper()
		got := decode[struct {
			Cells any
			Keys  *struct{ Cells any }
		}](t, p.request(t, "GET", "/queues/"+queue+"/placement", ""))
		text := fmt.Sprint(got.Cells)
		if got.Keys != nil {
			text += fmt.Sprint(" keys ", got.Keys.Cells)
		}
		if text != want {
			t.Errorf("%s is placed on %s, want %s", queue, text, want)
		}
	}

	b := openTab(t, "http://"+p.address)
	b.look(1280, "light")
	b.open("")
	b.logIn(adminKey)
	for _, page := range []string{"cells", "queues", "queues/mail", "queues/mail/placement", "queues/" + longest + "/placement", "queues/new/placement"} {
		b.open(page)
		b.view("cells/"+page, true)
	}

	// The form, in a narrow browser that runs no script.
	b.look(360, "dark")
	if _, err := chromedp.Call(b.ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true}); err != nil {
		t.Fatal(err)
	}
	send := func(want, cells string, withKeys bool) {
		t.Helper()
		evaluate[any](b.ctx, t, fmt.Sprintf(`document.querySelector("[name=cells]").value = %q; document.querySelector("[name=keys]").checked = %t; []`, cells, withKeys))
		b.press(`form[action$="/placement"] button`)
		if text := b.text(); !strings.Contains(text, want) {
			t.Errorf("to place it on %q leads to a page that does not say %q:\n%s", cells, want, text)
		}
		b.check("the form with " + cells)
		b.picture("forms/placement-" + strings.Trim(unfit.ReplaceAllString(cells, "-"), "-"))
	}
	b.open("queues/mail")
	b.press(`a[href$="mail/placement"]`)
	for _, wrong := range []string{"", "some", "256", "-1", "1 1"} {
		send("Validation failed", wrong, false)
		if got := evaluate[string](b.ctx, t, `document.querySelector("[name=cells]").value`); got != wrong {
			t.Errorf("the form has forgotten %q, and shows %q", wrong, got)
		}
	}
	send("The queue is placed", "0, 1", false)
	placed("mail", "[0 1] keys [1]")
	b.open("queues/mail/placement")
	p.request(t, "PUT", "/queues/mail/placement", `{"cells":[0]}`) // by somebody else, while the form is open
	send("Precondition failed", "1", true)
	placed("mail", "[0] keys [1]")
	b.open("queues/mail/placement")
	send("The queue is placed", "all", true)
	placed("mail", "all")
	b.open("queues/new/placement")
	send("The queue is placed", "1", false)
	placed("new", "[1]")

	if _, err := chromedp.Call(b.ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: false}); err != nil {
		t.Fatal(err)
	}
	// An open page tells of a cell that goes, by itself.
	b.open("cells")
	b.await(`document.querySelector("#stream-state").classList.contains("on")`)
	const away = `[...document.querySelectorAll("tbody tr")].map(r => r.innerText.includes("away")).join()`
	b.await(away + ` === "false,false,false"`)
	cells[2].end(t, syscall.SIGKILL)
	b.await(away + ` === "false,false,true"`)
	b.view("cells/away", true)
	b.open("queues")
	b.await(`document.body.innerText.includes("Cell 2 does not answer. What it has is missing here.")`)
	b.view("cells/missing", true)
	b.open("queues/new/placement")
	send("cannot be placed on cell 2", "2", false)
	placed("new", "[1]")
}
