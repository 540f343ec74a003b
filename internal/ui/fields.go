package ui

import "strings"

// Wrong returns what is wrong with a field of a form; empty: nothing is known to be. Fields are named by the pointers of the API, such as rate_limit/burst. What
// is wrong with one element of a list is said with its place.
func (p *Page) Wrong(name string) string {
	if p.Problem == nil {
		return ""
	}
	var wrong []string
	for _, f := range p.Problem.Fields {
		switch rest, isBelow := strings.CutPrefix(f.Name, name+"/"); {
		case f.Name == name, f.Name == "{"+name+"}": // the latter is in the path of the call
			wrong = append(wrong, f.Detail)
		case isBelow:
			wrong = append(wrong, rest+": "+f.Detail)
		}
	}
	return strings.Join(wrong, "; ")
}

// IsChecked reports whether a box is to be checked: as it was sent when the action failed, else as is given.
func (p *Page) IsChecked(name string, otherwise bool) bool {
	if len(p.Form) > 0 {
		return p.Form.Has(name)
	}
	return otherwise
}
