package pages

import (
	"net/http"
	"net/url"
	"time"

	"github.com/queued/queued/client"
	"github.com/queued/queued/internal/duration"
	"github.com/queued/queued/internal/ui"
)

// setIf sets a parameter that has a value.
func setIf(query url.Values, name, value string) {
	if value != "" {
		query.Set(name, value)
	}
}

// duration returns a duration that was entered, such as 5m or 1d; 0: none was.
func (v *visit) duration(field string) (time.Duration, error) {
	text := v.form.Get(field)
	if text == "" {
		return 0, nil
	}
	d, err := duration.Parse(text)
	if err != nil || d < 0 {
		return 0, invalid(field, "must be a duration such as 90s, 5m or 1d")
	}
	return d, nil
}

// invalid is the error of one field of a form.
func invalid(field, detail string) error {
	return &client.Error{Status: http.StatusBadRequest, Title: "Validation failed", Errors: []client.FieldError{{Pointer: field, Detail: detail}}}
}

// pager leads from a page of a list to the next, which begins at a cursor of the API; nil: there is none.
func (v *visit) pager(next *string) ui.Pager {
	var p ui.Pager
	query := v.r.URL.Query()
	query.Del("did")
	query.Del("n")
	if query.Has("cursor") {
		query.Del("cursor")
		p.First = "?" + query.Encode()
	}
	if next != nil {
		query.Set("cursor", *next)
		p.Next = "?" + query.Encode()
	}
	return p
}
