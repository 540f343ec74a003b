package match_test

import (
	"encoding/json"
	"math/big"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// The naive matcher is the definition of a match in as few words as possible: every way to pick one value, or none, for each condition is tried.
// A pick is consistent if no two of its values lie in different elements of the same array.

type naiveValue struct {
	value    any
	elements map[string]int // the element of each array around the value
}

func decode(tb testing.TB, text string) any {
	tb.Helper()
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		tb.Fatalf("%s: %v", text, err)
	}
	return value
}

func naiveMatch(t *testing.T, pattern, event string) bool {
	t.Helper()
	values := map[string][]naiveValue{}
	flatten(decode(t, event), "", "", map[string]int{}, values)
	p, _ := decode(t, pattern).(map[string]any)
	return slices.ContainsFunc(naiveExpand(p, ""), func(conditions map[string][]any) bool {
		paths := make([]string, 0, len(conditions))
		for path := range conditions {
			paths = append(paths, path)
		}
		return naivePick(t, conditions, paths, nil, map[string]int{}, values)
	})
}

// flatten lists the scalars at each path. where tells arrays apart.
func flatten(value any, path, where string, elements map[string]int, into map[string][]naiveValue) {
	switch value := value.(type) {
	case map[string]any:
		for name, inner := range value {
			flatten(inner, path+"\x00"+name, where+"\x00"+name, elements, into)
		}
	case []any:
		for i, inner := range value {
			within := elements
			switch inner.(type) {
			case map[string]any, []any:
				within = map[string]int{where: i}
				for array, element := range elements {
					within[array] = element
				}
			}
			flatten(inner, path, where+"\x01"+string(rune('0'+i)), within, into)
		}
	default:
		into[path] = append(into[path], naiveValue{value, elements})
	}
}

// naiveExpand returns the conditions of each combination of $or: path to alternatives.
func naiveExpand(pattern map[string]any, path string) []map[string][]any {
	result := []map[string][]any{{}}
	cross := func(others []map[string][]any) {
		var product []map[string][]any
		for _, a := range result {
			for _, b := range others {
				both := map[string][]any{}
				for k, v := range a {
					both[k] = v
				}
				for k, v := range b {
					both[k] = v
				}
				product = append(product, both)
			}
		}
		result = product
	}
	for name, value := range pattern {
		switch value := value.(type) {
		case map[string]any:
			cross(naiveExpand(value, path+"\x00"+name))
		case []any:
			if name != "$or" {
				cross([]map[string][]any{{path + "\x00" + name: value}})
				continue
			}
			var branches []map[string][]any
			for _, branch := range value {
				b, _ := branch.(map[string]any)
				branches = append(branches, naiveExpand(b, path)...)
			}
			cross(branches)
		}
	}
	return result
}

func naivePick(t *testing.T, conditions map[string][]any, paths, without []string, elements map[string]int, values map[string][]naiveValue) bool {
	t.Helper()
	if len(paths) == 0 {
		for _, path := range without {
			for _, v := range values[path] {
				if consistent(elements, v.elements) != nil {
					return false
				}
			}
		}
		return true
	}
	path := paths[0]
	for _, v := range values[path] {
		both := consistent(elements, v.elements)
		if both == nil || !slices.ContainsFunc(conditions[path], func(a any) bool { return naiveAlternative(t, a, v.value) }) {
			continue
		}
		if naivePick(t, conditions, paths[1:], without, both, values) {
			return true
		}
	}
	absent := slices.ContainsFunc(conditions[path], func(a any) bool {
		operator, ok := a.(map[string]any)
		return ok && operator["exists"] == false
	})
	return absent && naivePick(t, conditions, paths[1:], append(slices.Clone(without), path), elements, values)
}

func consistent(a, b map[string]int) map[string]int {
	both := map[string]int{}
	for array, element := range a {
		both[array] = element
	}
	for array, element := range b {
		if other, known := both[array]; known && other != element {
			return nil
		}
		both[array] = element
	}
	return both
}

func rational(t *testing.T, n json.Number) *big.Rat {
	t.Helper()
	r, ok := new(big.Rat).SetString(string(n))
	if !ok {
		t.Fatalf("%q is no number", n)
	}
	return r
}

func naiveAlternative(t *testing.T, alternative, value any) bool {
	t.Helper()
	if n, ok := alternative.(json.Number); ok {
		v, number := value.(json.Number)
		return number && rational(t, n).Cmp(rational(t, v)) == 0
	}
	operator, ok := alternative.(map[string]any)
	if !ok {
		return alternative == value
	}
	text, isText := value.(string)
	for name, argument := range operator {
		if inner, ok := argument.(map[string]any); ok && name != "anything-but" {
			argument, text = naiveFold(inner["equals-ignore-case"].(string)), naiveFold(text)
		}
		switch name {
		case "exists":
			return argument == true
		case "prefix":
			return isText && strings.HasPrefix(text, argument.(string))
		case "suffix":
			return isText && strings.HasSuffix(text, argument.(string))
		case "equals-ignore-case":
			return isText && strings.EqualFold(text, argument.(string))
		case "wildcard":
			return isText && naiveWildcard(text, argument.(string))
		case "cidr":
			prefix, err := netip.ParsePrefix(argument.(string))
			address, err2 := netip.ParseAddr(text)
			return isText && err == nil && err2 == nil && address.Zone() == "" && prefix.Contains(address.Unmap())
		case "anything-but":
			return !naiveExcluded(t, argument, value)
		case "numeric":
			v, number := value.(json.Number)
			list := argument.([]any)
			for i := 0; i < len(list) && number; i += 2 {
				order := rational(t, v).Cmp(rational(t, list[i+1].(json.Number)))
				number = order < 0 && strings.Contains(list[i].(string), "<") || order == 0 && strings.Contains(list[i].(string), "=") ||
					order > 0 && strings.Contains(list[i].(string), ">")
			}
			return number
		}
	}
	return false
}

func naiveExcluded(t *testing.T, argument, value any) bool {
	t.Helper()
	operator := ""
	if inner, ok := argument.(map[string]any); ok {
		for name, list := range inner {
			operator, argument = name, list
		}
	}
	list, ok := argument.([]any)
	if !ok {
		list = []any{argument}
	}
	return slices.ContainsFunc(list, func(one any) bool {
		if operator != "" {
			one = map[string]any{operator: one}
		}
		return naiveAlternative(t, one, value)
	})
}

// naiveFold is for ASCII and for the few other characters of the tests.
func naiveFold(text string) string {
	return strings.ToLower(strings.ToUpper(text))
}

// naiveWildcard tries, at each star, both to go on and to stay; it remembers nothing.
func naiveWildcard(text, pattern string) bool {
	switch {
	case pattern == "":
		return text == ""
	case pattern[0] == '*':
		return naiveWildcard(text, pattern[1:]) || text != "" && naiveWildcard(text[1:], pattern)
	case pattern[0] == '\\':
		pattern = pattern[1:]
	}
	return text != "" && text[0] == pattern[0] && naiveWildcard(text[1:], pattern[1:])
}
