package ui

import (
	"net/url"
	"testing"
	"time"
)

func TestWhatIsWrongIsSaidAtItsField(t *testing.T) {
	t.Parallel()
	p := &Page{Problem: &Problem{Fields: []Field{
		{"url", "must be https"}, {"headers/X-A", "must be a string"}, {"headers/X-B", "is reserved"}, {"{name}", "is too long"}, {"rate/per_second", "must be a number"},
	}}}
	for field, want := range map[string]string{
		"url": "must be https", "headers": "X-A: must be a string; X-B: is reserved", "name": "is too long", "rate/per_second": "must be a number", "ur": "", "header": "",
	} {
		if got := p.Wrong(field); got != want {
			t.Errorf("at %s it says %q, want %q", field, got, want)
		}
	}
	if got := (&Page{}).Wrong("url"); got != "" {
		t.Errorf("a page without a problem says %q", got)
	}
}

func TestBoxesStayAsTheyWereSent(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		form     url.Values
		is, want bool
	}{{nil, true, true}, {nil, false, false}, {url.Values{"name": {"x"}}, true, false}, {url.Values{"paused": {"on"}}, false, true}} {
		if got := (&Page{Form: c.form}).IsChecked("paused", c.is); got != c.want {
			t.Errorf("%v: %t, want %t", c, got, c.want)
		}
	}
}

func TestTextsOfStrangersHideNothing(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"plain\n\ttext": "plain\n\ttext", "a\x00b\x1b[31m\x7f": "a␀b␛[31m␡", "a\u202eb": "a‹U+202E›b", "\ufeff\u00ad\u2028\u0085": "‹U+FEFF›‹U+00AD›‹U+2028›‹U+0085›",
		"👩\u200d💻 é": "👩\u200d💻 é", "\xff": "\ufffd", "\U000e0041": "‹U+E0041›",
	} {
		if got := visible(text); got != want {
			t.Errorf("%q is shown as %q, want %q", text, got, want)
		}
	}
}

func TestDurationsAreEnteredAsTheAPITakesThem(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0: "", 168 * time.Hour: "168h", 5 * time.Minute: "5m", 90 * time.Minute: "1h30m", 15 * time.Second: "15s", time.Hour + time.Second: "1h0m1s", 10 * time.Hour: "10h",
	} {
		if got := span(d); got != want {
			t.Errorf("%d ns is entered as %q, want %q", d, got, want)
		}
	}
}
