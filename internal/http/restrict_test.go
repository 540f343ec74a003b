package http

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/queued/queued/internal/http/bind"
)

// usedNames are the names that fields have in requests which say what a call is about.
var usedNames = []string{"queue", "queues", "from", "to", "topic", "topics", "patterns", "subscription", "subscriptions", "schedule", "deliver_to", "default_queue"}

// namesUse reports whether a field looks as if it named a queue, a topic or something else that not all callers may use. In a request that some restricted
// callers may make, so does whatever is in the path, and each id.
func namesUse(f *bind.Field, isDeclared bool) bool {
	rules := strings.Split(f.Rules, ",")
	switch {
	case slices.Contains(rules, "queue"), slices.Contains(rules, "topic"), isDeclared && (f.In == "path" || f.Name == "id"):
		return true
	}
	return slices.Contains(usedNames, f.Name) && f.IsText()
}

// untagged returns the fields that look as if they named what is used, and that have no tag restrict.
func untagged(fields []bind.Field, isDeclared bool) (names []string) {
	for i := range fields {
		f := &fields[i]
		if f.Restrict.Kind == "" && namesUse(f, isDeclared) {
			names = append(names, f.In+" "+f.Name)
		}
		names = append(names, untagged(f.Members, isDeclared)...)
		if f.Element != nil {
			names = append(names, untagged(f.Element.Members, isDeclared)...)
		}
	}
	return names
}

func TestEveryFieldThatNamesWhatIsUsedIsRestricted(t *testing.T) {
	t.Parallel()
	r := New(Config{}).routes()
	for _, route := range slices.Sorted(maps.Keys(r.scopes)) {
		binding, ok := r.bound[route]
		if !ok {
			if r.scopes[route] != public {
				t.Errorf("%s has requests that nothing restricts", route)
			}
			continue
		}
		for _, name := range untagged(binding.Fields, binding.IsRestrictable()) {
			t.Errorf("%s: %s has no tag restrict", route, name)
		}
	}
}

func TestFieldsWithoutTheTagAreFound(t *testing.T) {
	t.Parallel()
	type item struct {
		ID    int64    `json:"id"`
		Topic []string `json:"topics"`
	}
	type request struct {
		Name    string `path:"name" validate:"min=1"`
		Queue   string `json:"queue" restrict:"queue"`
		To      string `json:"to"`
		Through string `json:"through" validate:"required,queue,unreserved"`
		Items   []item `json:"items"`
		One     *item  `json:"one"`
		Ignored *item  `json:"ignored"`
		Other   string `json:"other"`
	}
	binding := bind.New[request](testLimits)
	want := []string{"path name", "json to", "json through", "json id", "json topics", "json id", "json topics", "json id", "json topics"}
	if got := untagged(binding.Fields, binding.IsRestrictable()); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
