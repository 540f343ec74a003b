package pages

import (
	"context"
	"encoding/json"
	"maps"
	"net/url"
	"strconv"

	"github.com/queued/queued/client"
	"github.com/queued/queued/internal/ui"
)

// pageSize is how many items of most lists a page has.
const pageSize = 100

// withCursor returns the parameters of a list that goes on over several pages.
func withCursor(names []string) []string { return append([]string{"cursor"}, names...) }

// listOf reads a listing of the API, whose items are the named member of the answer. next is the cursor that the listing goes on from; nil: it has ended.
func listOf[T any](ctx context.Context, api *client.Client, path, member string, query url.Values) (items []T, next *string, err error) {
	var answer map[string]json.RawMessage
	if _, err = api.Do(ctx, client.Request{Path: path, Query: query}, &answer); err != nil {
		return nil, nil, err
	}
	if err = json.Unmarshal(answer[member], &items); err != nil {
		return nil, nil, err
	}
	if text, ok := answer["next"]; ok {
		err = json.Unmarshal(text, &next)
	}
	return items, next, err
}

// pageOf is listOf for limit items that a filter lets through, from the cursor of the visit on.
func pageOf[T any](v *visit, path, member string, filter url.Values, limit int) (items []T, next *string, err error) {
	query := url.Values{"limit": {strconv.Itoa(limit)}}
	maps.Copy(query, filter)
	setIf(query, "cursor", v.query("cursor"))
	return listOf[T](v.r.Context(), v.api, path, member, query)
}

// pager leads from a page of a list to its first page, and to the next, which begins at a cursor of the API; nil: there is none.
func (v *visit) pager(next *string) ui.Pager { return v.pagerOf(v.parameters(), next) }

// pagerOf is pager for a list whose pages have the parameters of query, and not those of the visit.
func (v *visit) pagerOf(query url.Values, next *string) ui.Pager {
	var p ui.Pager
	query = maps.Clone(query)
	query.Del("cursor")
	if v.query("cursor") != "" {
		p.First = "?" + query.Encode()
	}
	if next != nil {
		query.Set("cursor", *next)
		p.Next = "?" + query.Encode()
	}
	return p
}
