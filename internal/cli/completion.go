package cli

import (
	"context"
	_ "embed" // the scripts
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/queued/queued/client"
)

// The scripts ask the hidden command __complete for candidates.
var (
	//go:embed completion.bash
	bashScript string
	//go:embed completion.zsh
	zshScript string
	//go:embed completion.fish
	fishScript string
)

// CompletionCmd writes the completion script of a shell.
type CompletionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"The shell: bash, zsh or fish."`
}

// Help returns the text below the usage.
func (*CompletionCmd) Help() string {
	return examples(
		`source <(queued completion bash)     # in ~/.bashrc`,
		`source <(queued completion zsh)      # in ~/.zshrc, after compinit`,
		`queued completion fish | source      # in ~/.config/fish/config.fish`,
	) + "\nCommands, flags and their values are completed; names of queues and sources come from the server of $QUEUED_URL."
}

// Run writes the script.
func (c *CompletionCmd) Run(env *Env) error {
	script := map[string]string{"bash": bashScript, "zsh": zshScript, "fish": fishScript}[c.Shell]
	_, err := io.WriteString(env.Stdout, script)
	return err
}

// candidatesCmd writes the candidates for the last word, each with its description after a tab. It writes nothing where a file is wanted, or
// nothing is known.
type candidatesCmd struct {
	connection `embed:""`
	Words      []string `arg:"" optional:"" empty:"" help:"The words of the command line after the program, up to the one to complete."`
}

// askLimit bounds the question to the server: somebody waits with the finger on the tab key.
const askLimit = time.Second

// Run writes the candidates.
func (c *candidatesCmd) Run(ctx context.Context, env *Env, app *kong.Context) error {
	at := position{node: app.Model.Node}
	for _, word := range c.Words[:max(0, len(c.Words)-1)] {
		at.pass(word)
	}
	word := ""
	if len(c.Words) > 0 {
		word = c.Words[len(c.Words)-1]
	}
	prefix := ""
	if name, value, has := strings.Cut(word, "="); has && at.value == nil && strings.HasPrefix(word, "-") {
		at.pass(name)
		prefix, word = name+"=", value
	}
	for _, candidate := range at.candidates(word, func(of string) []string { return c.names(ctx, env, of) }) {
		if strings.HasPrefix(candidate[0], word) {
			if _, err := fmt.Fprintf(env.Stdout, "%s%s\t%s\n", prefix, printable(candidate[0]), printable(candidate[1])); err != nil {
				return err
			}
		}
	}
	return nil
}

// position is a place in a command line.
type position struct {
	node  *kong.Node
	value *kong.Value // the flag whose value comes next; nil: none
	args  int         // arguments so far
}

// pass goes on by one word.
func (p *position) pass(word string) {
	switch {
	case p.value != nil:
		p.value = nil
	case strings.HasPrefix(word, "-"):
		if !strings.Contains(word, "=") {
			p.value = p.flag(word)
		}
	default:
		for _, child := range p.node.Children {
			if child.Name == word && !child.Hidden {
				p.node, p.args = child, 0
				return
			}
		}
		p.node = p.command()
		p.args++
	}
}

// command returns the command that runs unless the name of another one follows.
func (p *position) command() *kong.Node {
	if p.node.DefaultCmd != nil && p.node.Parent != nil {
		return p.node.DefaultCmd
	}
	return p.node
}

// flag returns the flag that a word names if it takes a value.
func (p *position) flag(word string) *kong.Value {
	for _, group := range p.command().AllFlags(true) {
		for _, flag := range group {
			isNamed := word == "--"+flag.Name || slices.Contains(flag.Aliases, strings.TrimPrefix(word, "--"))
			if (isNamed || flag.Short != 0 && word == "-"+string(flag.Short)) && !flag.IsBool() && !flag.IsCounter() {
				return flag.Value
			}
		}
	}
	return nil
}

// candidates returns the candidates for a word here, with descriptions.
func (p *position) candidates(word string, names func(of string) []string) (all [][2]string) {
	if p.value != nil {
		return values(p.value, names)
	}
	if strings.HasPrefix(word, "-") {
		for _, group := range p.command().AllFlags(true) {
			for _, flag := range group {
				all = append(all, [2]string{"--" + flag.Name, firstSentence(flag.Help)})
			}
		}
		return all
	}
	for _, child := range p.node.Children {
		if !child.Hidden && p.args == 0 {
			all = append(all, [2]string{child.Name, firstSentence(child.Help)})
		}
	}
	if expected := p.command().Positional; p.args < len(expected) {
		all = append(all, values(expected[p.args], names)...)
	}
	return all
}

// values returns the values that a flag or an argument can have, as far as they are known.
func values(v *kong.Value, names func(of string) []string) (all [][2]string) {
	choices := choicesOf(v)
	if v.Name == "queue" || v.Tag.Has("queue") {
		choices = names("queue")
	}
	for _, of := range []string{"source", "context"} {
		if v.Tag.Has(of) {
			choices = names(of)
		}
	}
	for _, choice := range choices {
		all = append(all, [2]string{choice})
	}
	return all
}

// choicesOf returns all values that a flag or an argument can have; none if it can have any.
func choicesOf(v *kong.Value) []string {
	choices := v.EnumSlice()
	if v.Tag.Has("choices") { // of a setting of the program
		choices = strings.Split(v.Tag.Get("choices"), ",")
	}
	return slices.DeleteFunc(choices, func(choice string) bool { return choice == "" })
}

func firstSentence(text string) string {
	text, _, _ = strings.Cut(text, ". ")
	text, _, _ = strings.Cut(text, "; ")
	return strings.TrimSuffix(text, ".")
}

// names returns the names of all queues, sources or contexts; none if the server does not say so soon.
func (c *candidatesCmd) names(ctx context.Context, env *Env, of string) (names []string) {
	if of == "context" {
		if file, err := readContexts(env); err == nil {
			names = file.names()
		}
		return names
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	conn, err := c.connect(client.Config{RetryFor: -1}, patience{})
	if err != nil {
		return nil
	}
	defer conn.Close()
	if of == "source" {
		for source, err := range conn.ListSources(ctx) {
			if err != nil {
				break
			}
			names = append(names, source.Name)
		}
		return names
	}
	for queue, err := range conn.ListQueues(ctx) {
		if err != nil {
			break
		}
		names = append(names, queue.Queue)
	}
	return names
}
