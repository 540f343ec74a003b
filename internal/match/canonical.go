package match

import (
	"crypto/sha256"
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
		members = append(members, quote(c.name)+":"+c.form)
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

// A path leads to a member of an event through those around it. Of one filter, equal paths are the same, and those below a member share the path to it:
// a list of names for each would be many times as long as the filter.
type path struct {
	within *path // nil: the event
	name   string
	length int
	hash   [sha256.Size]byte // equal for equal paths of all filters
}

// paths are those of one filter.
type paths map[pathStep]*path

type pathStep struct {
	within *path
	name   string
}

// member returns the path to a member of the object at a path; nil: of the event.
func (known paths) member(within *path, name string) *path {
	step := pathStep{within, name}
	p := known[step]
	if p == nil {
		p = &path{within: within, name: name, length: 1}
		var around [sha256.Size]byte
		if within != nil {
			p.length, around = p.length+within.length, within.hash
		}
		hash := sha256.New()
		hash.Write(around[:])
		hash.Write([]byte(name))
		hash.Sum(p.hash[:0])
		known[step] = p
	}
	return p
}

// names returns the names on the path.
func (p *path) names() []string {
	names := make([]string, p.length)
	for ; p != nil; p = p.within {
		names[p.length-1] = p.name
	}
	return names
}

// keyWith is the key of the condition at the path whose alternatives are form.
func (p *path) keyWith(form string) string {
	hash := sha256.New()
	hash.Write(p.hash[:])
	hash.Write([]byte(form))
	return string(hash.Sum(nil))
}
