package match

import (
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// canonical writes a filter in the one form that all its writings have. Parsing that form again yields the same form.
func canonical(topics []topicPattern, top *group) []byte {
	var members []string
	if topics != nil {
		texts := make([]string, len(topics))
		for i, topic := range topics {
			texts[i] = quote(topic.text)
		}
		members = append(members, `"topics":[`+strings.Join(texts, ",")+`]`)
	}
	if top != nil {
		members = append(members, `"match":`+canonicalGroup(top))
	}
	return []byte("{" + strings.Join(members, ",") + "}")
}

func canonicalGroup(g *group) string {
	var members []string
	for _, c := range g.conditions {
		members = append(members, quote(c.path[0])+":"+c.form)
	}
	for i, inner := range g.inner {
		members = append(members, quote(g.names[i])+":"+canonicalGroup(inner))
	}
	if g.or != nil {
		var branches []string
		for _, branch := range g.or {
			branches = append(branches, canonicalGroup(branch))
		}
		slices.Sort(branches)
		members = append(members, quote(opOr)+":["+strings.Join(branches, ",")+"]")
	}
	slices.Sort(members)
	return "{" + strings.Join(members, ",") + "}"
}

func quote(text string) string {
	quoted, err := jsontext.AppendQuote(nil, text)
	if err != nil {
		return `""` // invalid UTF-8, which the parser has refused
	}
	return string(quoted)
}

// pathKey is different for different paths.
func pathKey(path []string) string {
	quoted := make([]string, len(path))
	for i, name := range path {
		quoted[i] = quote(name)
	}
	return strings.Join(quoted, "")
}
