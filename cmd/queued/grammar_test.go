package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/queued/queued/internal/cli"
)

// parseHere parses args by a grammar, and returns what that wrote.
func parseHere(t *testing.T, g any, args ...string) (line *commandLine, out string, err error) {
	t.Helper()
	var written bytes.Buffer
	env := &cliEnv{client: new(cli.Env), stdout: &written, stderr: &written}
	line, err = parseWith(t.Context(), g, args, env)
	return line, written.String(), err
}

func TestPartOfTheGrammarHasItsCommandAsTheWholeDoes(t *testing.T) {
	t.Parallel()
	var want bytes.Buffer
	whole, err := newParser(new(grammar), newSettingsReader(nil), kong.Writers(&want, &want), kong.Exit(func(int) {}))
	if err != nil {
		t.Fatal(err)
	}
	commands := 0
	var visit func(words []string, node *kong.Node)
	visit = func(words []string, node *kong.Node) {
		for _, child := range node.Children {
			if child.Hidden || child.Name == "help" {
				continue
			}
			commands++
			words := append(slices.Clone(words), child.Name)
			part := partOf(words)
			if part == nil {
				t.Errorf("%q: is parsed by the whole grammar", words)
				continue
			}
			line, got, err := parseHere(t, part, append(words, "--help")...)
			want.Reset()
			_, _ = whole.Parse(append(words, "--help")) // which goes on after the help, and then misses arguments
			if err != nil || !line.exited || got != want.String() || got == "" {
				t.Errorf("%q: its help is\n%s\nand by the whole grammar\n%s", words, got, &want)
			}
			visit(words, child)
		}
	}
	visit(nil, whole.Model.Node)
	if line, _, err := parseHere(t, partOf(nil)); err != nil || line.parsed.Selected().Name != "serve" {
		t.Errorf("without arguments it runs %+v, %v", line, err)
	}
	if commands < 100 {
		t.Errorf("%d commands", commands)
	}
}

func TestMistakesAreDescribedByTheWholeGrammar(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"queue sow orders", "queue", "post --qeue orders", "queues --timeout", "serve --url x", "ack", "keys creat", "claim orders -- x"} {
		words := strings.Fields(args)
		if partOf(words) == nil {
			t.Errorf("%s: is parsed by the whole grammar", args)
		}
		_, _, want := parseHere(t, new(grammar), words...)
		code, stdout, stderr := runHere(t, words, nil)
		if want == nil || code != exitUsage || stdout != "" || stderr != "queued: "+want.Error()+"\n" {
			t.Errorf("%s: exit code %d, output %q and %q, want the error %v", args, code, stdout, stderr, want)
		}
	}
}

func TestWholeGrammarParsesWhatBeginsWithNoCommand(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"--version", "--listen :0", "--url http://h queues", "help queue", "__complete queue", "sow", "Queue", "versioncmd", "commands"} {
		if part := partOf(strings.Fields(args)); part != nil {
			t.Errorf("%q: is parsed by %T", args, part)
		}
	}
}

func BenchmarkParse(b *testing.B) {
	for name, g := range map[string]func() any{"part": func() any { return partOf([]string{"queue"}) }, "whole": func() any { return new(grammar) }} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := newParser(g(), newSettingsReader(nil)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
