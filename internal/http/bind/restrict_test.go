package bind_test

import (
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/queued/queued/internal/body"
	"github.com/queued/queued/internal/http/bind"
)

type usedTarget struct {
	Queue *string `json:"queue" restrict:"queue"`
}

type usedItem struct {
	Queue string `json:"queue" default:"q" restrict:"queue,default,unless=Topic"`
	Topic string `json:"topic" restrict:"topic,optional"`
}

type usedPatterns struct {
	Topics []string `json:"topics" restrict:"topics"`
	Other  string   `json:"other"`
}

type usesRequest struct {
	Name         string      `path:"name" restrict:"subscription"`
	Filter       string      `query:"filter" restrict:"-"`
	Deliver      *usedTarget `json:"deliver"`
	Items        []usedItem  `json:"items"`
	usedPatterns `restrict:"statement"`
	Skipped      usedPatterns `json:"skipped" restrict:"-"`
	Limit        int          `json:"limit"`
	Queues       []string     `restrict:"allowed_queues"`
}

func usesOf(t *testing.T, sent string) (uses []string) {
	t.Helper()
	r := httptest.NewRequest("POST", "/?filter=f", strings.NewReader(sent))
	r.SetPathValue("name", "n")
	binding := bind.New[usesRequest](bind.Limits{Body: 1 << 20, Event: 1 << 20, Items: 10, Depth: 10})
	var req usesRequest
	if err := binding.Decode(httptest.NewRecorder(), r, new(body.Hold), &req); err != nil {
		t.Fatal(err)
	}
	if !binding.IsRestrictable() {
		t.Error("the request is not restrictable")
	}
	err := binding.Uses(&req, func(u *bind.Use) error {
		value := fmt.Sprint(u.Value.Interface())
		if u.Kind == "queue" || u.Kind == "topic" {
			value = u.Text()
		}
		uses = append(uses, strings.TrimSpace(u.Kind+" "+u.Pointer()+" "+value))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return uses
}

func TestUsesAreFoundWhereverTheyAre(t *testing.T) {
	t.Parallel()
	for sent, want := range map[string][]string{
		`{}`: {"subscription {name} n", "statement #/topics []", "allowed_queues  []"},
		`{"deliver":{},"items":[{},{"queue":"a"},{"topic":"t","queue":"b"}],"topics":["x"],"skipped":{"topics":["y"]}}`: {
			"subscription {name} n", "queue #/deliver/queue", "queue #/items/0/queue q", "topic #/items/0/topic", "queue #/items/1/queue a", "topic #/items/1/topic",
			"topic #/items/2/topic t", "statement #/topics [x]", "allowed_queues  []",
		},
	} {
		if got := usesOf(t, sent); !slices.Equal(got, want) {
			t.Errorf("%s:\ngot  %q\nwant %q", sent, got, want)
		}
	}
}

func TestTagsOfRestrictionsThatAreNotKnownPanic(t *testing.T) {
	t.Parallel()
	lim := bind.Limits{}
	for name, newBinding := range map[string]func(){
		"an unknown kind": func() {
			bind.New[struct {
				Queue string `json:"queue" restrict:"queu"`
			}](lim)
		},
		"an empty tag": func() {
			bind.New[struct {
				Queue string `json:"queue" restrict:""`
			}](lim)
		},
		"an unknown option": func() {
			bind.New[struct {
				Queue string `json:"queue" restrict:"queue,some"`
			}](lim)
		},
		"an unknown field": func() {
			bind.New[struct {
				Queue string `json:"queue" restrict:"queue,unless=Topic"`
			}](lim)
		},
		"a field that nothing restricts": func() {
			bind.New[struct {
				Queue string `json:"queue" restrict:"queue,unless=Topic"`
				Topic string `json:"topic"`
			}](lim)
		},
		"another type": func() {
			bind.New[struct {
				Queue []string `json:"queue" restrict:"queue"`
			}](lim)
		},
		"a struct": func() {
			bind.New[struct {
				usedPatterns `restrict:"topics"`
			}](lim)
		},
		"a field that is not read": func() {
			bind.New[struct {
				Queue string `restrict:"queue"`
			}](lim)
		},
		"a list of what is allowed that is read": func() {
			bind.New[struct {
				Queues []string `json:"queues" restrict:"allowed_queues"`
			}](lim)
		},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s was taken", name)
				}
			}()
			newBinding()
		}()
	}
}

func TestRequestWithoutUsesIsNotRestrictable(t *testing.T) {
	t.Parallel()
	if bind.New[struct {
		Queues []string `json:"queues" restrict:"-"`
		Limit  int      `json:"limit"`
	}](bind.Limits{}).IsRestrictable() {
		t.Error("it is")
	}
}
