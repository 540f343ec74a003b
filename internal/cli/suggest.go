package cli

import (
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// Suggest returns the word that was probably meant by a wrong one in a command line: the name of a command, or a value of a flag that has few.
// wrong is empty if there is none. Wrong names of flags are left to kong.
func Suggest(root *kong.Node, args []string) (wrong, right string) {
	at := position{node: root}
	for _, word := range args {
		flag, text := at.value, word
		if name, value, has := strings.Cut(word, "="); has && strings.HasPrefix(word, "-") {
			flag, text = at.flag(name), value
		}
		switch {
		case flag != nil:
			if choices := choicesOf(flag); len(choices) > 0 {
				if right := nearest(text, choices); right != text {
					return text, right
				}
			}
		case strings.HasPrefix(word, "-"):
		case at.args == 0 && len(at.node.Children) > 0:
			var names []string
			for _, below := range at.node.Children {
				if !below.Hidden {
					names = append(names, below.Name)
				}
			}
			if right := nearest(word, names); right != word {
				return word, right
			}
		}
		at.pass(word)
	}
	return "", ""
}

// SuggestShow returns the command that shows what an argument names, where the one without a name lists all and takes none: "queued owners show ada" for
// "queued owners ada". It is empty if there is none.
func SuggestShow(root *kong.Node, args []string) string {
	at := position{node: root}
	for _, word := range args {
		isArg := at.value == nil && !strings.HasPrefix(word, "-")
		at.pass(word)
		if group := at.node.Parent; isArg && group != nil && at.node == group.DefaultCmd && at.args > 0 && len(at.node.Positional) == 0 {
			for _, sibling := range group.Children {
				if sibling.Name == "show" || sibling.Name == "get" {
					return sibling.FullPath() + " " + printable(word)
				}
			}
		}
	}
	return ""
}

// FlagsLast returns args with the flags about the server, such as --url, that stand before a command of this package behind it, where kong takes them.
func FlagsLast(root *kong.Node, args []string) []string {
	isOfServer := make(map[string]bool)
	for _, leaf := range root.Leaves(true) {
		for _, flag := range leaf.Flags {
			if flag.Group != nil && flag.Group.Key == "Server:" {
				isOfServer["--"+flag.Name] = true
				isOfServer["-"+string(flag.Short)] = flag.Short != 0
			}
		}
	}
	n := 0
	for n < len(args) {
		name, _, hasValue := strings.Cut(args[n], "=")
		if !isOfServer[name] {
			break
		}
		if n++; !hasValue {
			n++ // each of them has a value
		}
	}
	if n == 0 || n >= len(args) {
		return args
	}
	for _, child := range root.Children {
		if child.Name == args[n] && Has(child) {
			end := len(args)
			if at := slices.Index(args[n:], "--"); at >= 0 {
				end = n + at
			}
			return slices.Concat(args[n:end], args[:n], args[end:])
		}
	}
	return args
}

// maxDistance is how many letters a wrong word may differ by from the one that is suggested: more for a long one.
func maxDistance(word string) int {
	switch n := len(word); {
	case n < 2:
		return 0
	case n < shortWord:
		return 1
	}
	return 2
}

// shortWord is the length below which another letter soon makes another word.
const shortWord = 6

// nearest returns the choice that is the text, or the one that is nearest to it; the text if none is near.
func nearest(text string, choices []string) string {
	best, least := text, maxDistance(text)+1
	for _, choice := range choices {
		if len(text) < shortWord && len(text) > 0 && len(choice) > 0 && text[0] != choice[0] {
			continue // another word
		}
		if d := Distance(text, choice); d < least {
			best, least = choice, d
		}
	}
	return best
}

// Distance is the number of letters to insert, delete, replace or swap with their neighbour to turn a into b.
func Distance(a, b string) int {
	var before []int // the row above the row above
	above := make([]int, len(b)+1)
	for j := range above {
		above[j] = j
	}
	for i := range len(a) {
		row := make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			cost := above[j]
			if a[i] != b[j] {
				cost++
			}
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				cost = min(cost, before[j-1]+1)
			}
			row[j+1] = min(cost, above[j+1]+1, row[j]+1)
		}
		before, above = above, row
	}
	return above[len(b)]
}
