package e2e_test

import (
	"fmt"
	"testing"
)

// TestPagesOfACellWorkInABrowser looks at the pages of a cell behind a gateway, below the path of the cell, beside those of home.
func TestPagesOfACellWorkInABrowser(t *testing.T) {
	t.Parallel()
	findBrowser(t)
	program := build(t)
	var cells []*process
	for number := range 2 {
		cells = append(cells, start(t, program, newDatabase(t), freeAddress(t), "QUEUED_API_KEY="+adminKey, fmt.Sprintf("QUEUED_CELL=%d", number)))
	}
	p := startGateway(t, program, freeAddress(t), cells, "QUEUED_KEY="+adminKey)
	p.key = adminKey
	p.request(t, "PUT", "/queues/mail/placement", `{"cells":[1]}`)
	for range 3 {
		p.request(t, "POST", "/events?queue=mail", `{}`)
	}
	b := openTab(t, "http://"+p.address)
	b.look(1280, "light")
	b.open("")
	b.logIn(adminKey)
	b.base = "http://" + p.address + "/cells/1"
	b.open("queues/mail")
	b.logIn(adminKey)
	for _, page := range []string{"", "queues", "queues/mail", "history", "fleet"} {
		b.open(page)
		b.view("cells/"+page, true)
	}
	// The page changes by itself, and its forms and links stay below the path.
	b.open("queues/mail")
	b.await(`document.querySelector("#stream-state").classList.contains("on")`)
	p.request(t, "POST", "/events?queue=mail", `{}`)
	b.await(`/ready now\s+4\b/.test(document.body.innerText)`)
	b.press(`form[action$="/pause"] button`)
	b.await(`location.pathname === "/cells/1/ui/queues/mail" && document.querySelector(".head .tag.paused") !== null`)
	b.base = "http://" + p.address // where the log-in of before goes on
	b.open("queues")
	b.await(`location.pathname === "/ui/queues"`)
	b.view("cells/home", true)
}
