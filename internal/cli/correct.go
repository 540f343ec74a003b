package cli

import (
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// meanings has, by command, the words that people type in its place.
var meanings = map[string][]string{
	"ack":                          {"done", "complete", "finish"},
	"claim":                        {"dequeue", "pop", "receive", "fetch", "pull", "reserve", "take", "get"},
	"context":                      {"login", "config"},
	"errors":                       {"failures", "failed"},
	"events":                       {"event", "job", "jobs", "task", "tasks", "message", "messages", "msg", "peek", "show", "get", "inspect"},
	"healthcheck":                  {"health", "ping", "ready"},
	"migrate":                      {"upgrade", "init"},
	"nack":                         {"fail", "reject"},
	"post":                         {"enqueue", "insert", "add", "put", "send", "produce", "submit", "create", "new"},
	"publish":                      {"pub", "emit"},
	"queues":                       {"list", "ls"},
	"redrive --dead-letters QUEUE": {"dlq", "deadletter", "deadletters", "dead-letters"},
	"requeue":                      {"retry"},
	"schedules":                    {"cron", "crons"},
	"serve":                        {"server", "start", "up", "daemon"},
	"sources":                      {"webhook", "webhooks", "hook", "hooks"},
	"subscriptions":                {"sub", "subs"},
	"tail":                         {"log", "logs", "follow", "listen", "subscribe"},
	"top":                          {"ps", "status", "watch", "monitor"},
	"work":                         {"worker", "consume", "consumer", "process"},
	"workers":                      {"ps", "worker", "consumers"},
}

// verbs has the words that people type for the commands about a thing.
var verbs = map[string][]string{
	"list":   {"ls"},
	"show":   {"get", "describe", "inspect", "info", "view", "status"},
	"get":    {"show", "describe", "inspect", "info", "view", "status"},
	"delete": {"rm", "remove", "del", "drop"},
	"create": {"add", "new", "make"},
	"set":    {"create", "add", "new", "make", "update", "edit", "change"},
	"put":    {"create", "add", "new", "make", "update", "edit", "change", "set"},
	"resume": {"start", "unpause", "continue"},
	"pause":  {"stop", "halt", "suspend"},
	"purge":  {"empty", "clear", "flush", "drain"},
	"move":   {"mv"},
	"stats":  {"statistics", "metrics"},
}

// things are the commands about a thing, in the order in which one is taken that is left out.
var things = []string{"queue", "schedules", "redrives", "subscriptions", "keys", "groups", "sources", "owners", "push", "context"}

// noServerControl answers who wants to stop or start a server that runs.
const noServerControl = "Ctrl-C, or SIGTERM to its process, stops a server; \"queued serve\" starts one"

// Correct returns what to say about args, which cannot be parsed: the command lines that were meant probably; empty if none is known. parse tries another command line, and says
// whether it can be run, or would with arguments that it misses.
func Correct(root *kong.Node, args []string, parse func(args []string) (isWhole, isPart bool)) string {
	if len(args) == 0 {
		return ""
	}
	if len(args) == 1 && slices.Contains([]string{"stop", "down", "shutdown", "quit", "exit", "restart"}, args[0]) {
		return noServerControl
	}
	likely := likeliest(root, args, parse)
	if len(likely) == 0 {
		return ""
	}
	if likely[0][0] == "queue" { // what else may have been meant is rare
		likely = likely[:1]
	}
	var lines []string
	for _, line := range likely {
		if text := quoted(commandText(root, line)); !slices.Contains(lines, text) && len(lines) < 2 {
			lines = append(lines, text)
		}
	}
	text := "did you mean " + strings.Join(lines, " or ") + "?"
	if likely[0][0] == "tail" && slices.ContainsFunc(args, isFollow) {
		text += " It goes on until Ctrl-C without a flag"
	}
	return text
}

// likeliest returns the command lines that were meant probably: those of the first correction that has some.
func likeliest(root *kong.Node, args []string, parse func(args []string) (isWhole, isPart bool)) [][]string {
	for _, lines := range corrections(root, args) {
		var whole, part [][]string
		for _, line := range lines {
			if len(line) == 0 || slices.Equal(line, args) {
				continue
			}
			switch isWhole, isPart := parse(line); {
			case isWhole:
				whole = append(whole, line)
			case isPart:
				part = append(part, line)
			}
		}
		if likely := slices.Concat(whole, part); len(likely) > 0 {
			return likely[:max(1, len(whole))]
		}
	}
	return nil
}

// corrections returns what a wrong command line was meant to be probably, the likeliest correction first, each with the lines that it can lead to. Some cannot be parsed either.
func corrections(root *kong.Node, args []string) (all [][][]string) {
	first, rest := args[0], args[1:]
	if first == root.Name && len(rest) > 0 {
		return append([][][]string{{rest}}, corrections(root, rest)...)
	}
	if strings.HasPrefix(first, "-") { // flags before their command
		for i := 1; i < len(args); i++ {
			if command := child(root, args[i]); command != nil {
				flagsLast := slices.Concat(args[i+1:], args[:i])
				all = append(all, [][]string{slices.Concat(args[i:i+1], flagsLast)})
				all = append(all, correctionsOf(root, command, flagsLast)...)
			}
		}
		return all
	}
	if command := child(root, first); command != nil {
		return correctionsOf(root, command, rest)
	}
	if len(rest) > 0 {
		if thing := thingOf(root, rest[0]); thing != nil { // the verb before its noun
			all = append(all, withBegins(begins(thing, first), rest[1:]))
		}
	}
	meanings := meant(first)
	all = append(all, withBegins(meanings, rest))
	var ofThings [][]string
	for _, name := range things { // the verb without a noun
		if verb := verbOf(child(root, name), first); verb != "" {
			ofThings = append(ofThings, []string{name, verb})
		}
	}
	all = append(all, withBegins(ofThings, rest))
	if thing := thingOf(root, first); thing != nil { // one for many, or many for one
		meanings = append(meanings, []string{thing.Name})
		all = append(all, [][]string{slices.Concat([]string{thing.Name}, rest)})
	}
	for _, begin := range meanings {
		if command := child(root, begin[0]); begin[0] != "work" && len(begin) == 1 {
			all = append(all, correctionsOf(root, command, rest)...)
		}
	}
	return all
}

// withBegins returns a command line of each beginning.
func withBegins(begins [][]string, rest []string) (lines [][]string) {
	for _, begin := range begins {
		lines = append(lines, slices.Concat(begin, rest))
	}
	return lines
}

// correctionsOf is corrections of a line that begins with a command.
func correctionsOf(root, command *kong.Node, rest []string) (all [][][]string) {
	add := func(line ...[]string) { all = append(all, [][]string{slices.Concat(line...)}) }
	name, thing := []string{command.Name}, command
	at := position{node: command}
	var bare []int // the words that are arguments
	for i, word := range rest {
		if word == "--" {
			break
		}
		if at.value == nil && !strings.HasPrefix(word, "-") {
			bare = append(bare, i)
		}
		at.pass(word)
	}
	without := func(i int) []string { return slices.Concat(rest[:i], rest[i+1:]) }
	if len(bare) > 0 {
		isList, isShow := isVerb("list", rest[bare[0]]), isVerb("show", rest[bare[0]])
		if isList || isShow && len(command.Children) == 0 {
			add(name, without(bare[0]))
		}
	}
	if command.Name == "queues" {
		thing = child(root, "queue")
		add([]string{"queue"}, rest)
	}
	for n, i := range bare {
		if verb := verbOf(thing, rest[i]); n > 0 && verb != "" { // the verb behind the name
			add([]string{thing.Name, verb}, without(i))
		}
	}
	for i, word := range rest {
		if word == "--json" || word == "--jsonl" {
			add(name, rest[:i], []string{"-o", word[2:]}, rest[i+1:])
		}
	}
	switch {
	case command.Name == "tail":
		add(name, slices.DeleteFunc(slices.Clone(rest), isFollow))
	case command.Name == "work":
		add(correctionOfWork(rest, bare))
	case command.Name == "queue" && len(bare) == 0:
		add([]string{"queues"}, rest)
	case len(bare) > 0 && at.flag("--queue") != nil:
		add(name, rest[:bare[0]], []string{"-q"}, rest[bare[0]:])
	}
	return all
}

// correctionOfWork makes what stands behind -- the command of "work", and an argument before it the queue; without -- all arguments are the command.
func correctionOfWork(rest []string, bare []int) []string {
	line, command := []string{"work"}, []string(nil)
	end := slices.Index(rest, "--")
	if end >= 0 {
		command = rest[end+1:]
	}
	for i, word := range rest {
		switch {
		case end >= 0 && i >= end:
		case !slices.Contains(bare, i):
			line = append(line, word)
		case end >= 0 || slices.ContainsFunc(rest, func(word string) bool { return word == "--exec" || strings.HasPrefix(word, "--exec=") }):
			line = append(line, "-q", word)
		default:
			command = append(command, word)
		}
	}
	if len(command) > 0 {
		words := make([]string, len(command))
		for i, word := range command {
			words[i] = shellWord(word)
		}
		line = append(line, "--exec", strings.Join(words, " "))
	}
	return line
}

// meant returns the beginnings of command lines that a word stands for, which is no command.
func meant(word string) (begins [][]string) {
	for begin, words := range meanings {
		if slices.Contains(words, word) {
			begins = append(begins, strings.Fields(begin))
		}
	}
	slices.SortFunc(begins, slices.Compare)
	return begins
}

// thingOf returns the command about the thing that a word names, one of them or many; nil if there is none.
func thingOf(root *kong.Node, word string) *kong.Node {
	for _, name := range []string{strings.TrimSuffix(word, "s"), word, word + "s"} {
		if node := child(root, name); node != nil {
			return node
		}
	}
	for _, begin := range meant(word) {
		if begin[0] == "events" {
			return child(root, "events")
		}
	}
	return nil
}

// begins returns the beginnings of command lines that do what a verb says to a thing.
func begins(thing *kong.Node, verb string) (all [][]string) {
	isList, isShow := isVerb("list", verb), isVerb("show", verb)
	switch right := verbOf(thing, verb); {
	case isList && thing.Name == "queue":
		all = append(all, []string{"queues"})
	case isList:
		all = append(all, []string{thing.Name})
	case right != "":
		all = append(all, []string{thing.Name, right})
	case isShow && len(thing.Children) == 0:
		all = append(all, []string{thing.Name})
	}
	return all
}

// isVerb reports whether a word means the verb.
func isVerb(verb, word string) bool { return word == verb || slices.Contains(verbs[verb], word) }

// verbOf returns the name of the command below a thing that a verb means; empty if there is none.
func verbOf(thing *kong.Node, verb string) string {
	if thing == nil {
		return ""
	}
	if child(thing, verb) != nil {
		return verb
	}
	for _, below := range thing.Children {
		if slices.Contains(verbs[below.Name], verb) {
			return below.Name
		}
	}
	return ""
}

// child returns the command of a name below another; nil if there is none.
func child(node *kong.Node, name string) *kong.Node {
	for _, below := range node.Children {
		if below.Name == name && !below.Hidden {
			return below
		}
	}
	return nil
}

func isFollow(word string) bool { return word == "-f" || word == "-F" || word == "--follow" }

// maxShownWord is how many letters of a word of a command line are shown.
const maxShownWord = 60

// commandText returns a command line as a shell takes it, without secrets.
func commandText(root *kong.Node, args []string) string {
	words := []string{root.Name}
	at := position{node: root}
	for _, word := range args {
		value := at.value
		name, _, hasValue := strings.Cut(word, "=")
		switch {
		case value != nil && isSecret(value):
			words = append(words, "…")
		case value == nil && hasValue && strings.HasPrefix(word, "-") && isSecret(at.flag(name)):
			words = append(words, name+"=…")
		default:
			words = append(words, cut(shellWord(printable(word)), maxShownWord))
		}
		at.pass(word)
	}
	return strings.Join(words, " ")
}

// isSecret reports whether the value of a flag must not be shown, or may have a password in it.
func isSecret(value *kong.Value) bool {
	return value != nil && slices.Contains([]string{"secret", "secret-keys", "database-url", "proxy-url", "cell-keys"}, value.Tag.Type)
}

var plainWord = regexp.MustCompile(`^[\pL\pN_@%+=:,./-]+$`)

// shellWord returns a word as a shell takes it.
func shellWord(word string) string {
	if plainWord.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// quoted returns a command line in quotes.
func quoted(line string) string {
	if strings.Contains(line, `"`) {
		return "`" + line + "`"
	}
	return `"` + line + `"`
}
