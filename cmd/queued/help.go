package main

import (
	"fmt"
	"slices"

	"github.com/alecthomas/kong"

	"github.com/queued/queued/internal/cli"
)

// helpCmd shows the help of a command, as its --help does.
type helpCmd struct {
	Command []string `arg:"" optional:"" passthrough:"partial" help:"The command, such as queue set; without one, all commands are listed."`
}

// Run writes the help to standard output.
func (c *helpCmd) Run(app *kong.Kong) error {
	words := slices.Clone(c.Command)
	node := app.Model.Node
	for _, word := range words {
		next := childOf(node, word)
		if next == nil {
			text := fmt.Sprintf("%s has no command %q", node.FullPath(), word)
			if wrong, right := cli.Suggest(app.Model.Node, words); wrong == word && right != word {
				text += fmt.Sprintf("; did you mean %q?", right)
			}
			return usagef("%s\nRun \"%s --help\" for its commands and flags.", text, node.FullPath())
		}
		node = next
	}
	_, _ = app.Parse(append(words, "--help")) // which goes on after the help, and then misses arguments
	return nil
}

// childOf returns the command of a name below another; nil if there is none.
func childOf(node *kong.Node, name string) *kong.Node {
	for _, child := range node.Children {
		if child.Name == name && !child.Hidden {
			return child
		}
	}
	return nil
}
