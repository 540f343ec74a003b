//go:build unix

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// complete returns what the last of the words can be, by the command that the scripts of all shells ask.
func (p *program) complete(words ...string) (names []string) {
	p.t.Helper()
	for line := range strings.Lines(p.cli(append([]string{"__complete", "--"}, words...)...).want(0).stdout) {
		name, _, _ := strings.Cut(line, "\t")
		names = append(names, name)
	}
	return names
}

func TestCommandsFlagsAndValuesAreCompleted(t *testing.T) {
	t.Parallel()
	p := setupFront(t, "QUEUED_SECRET_KEY=a-key-that-seals-secrets")
	p.cliWith(`{"kind":"token","queue":"work","secrets":["one"]}`, nil, "sources", "put", "shop").want(0)
	p.cli("post", "-q", "mail:out", `{}`).want(0)
	p.cli("post", "-q", "work", `{}`).want(0)
	for line, want := range map[string][]string{
		"cl":                           {"claim"},
		"queue pa":                     {"pause"},
		"claim --lea":                  {"--lease"},
		"claim -q m":                   {"mail:out"},
		"claim --queue=m":              {"--queue=mail:out"},
		"claim -q mail -o j":           {"json", "jsonl"},
		"history --outcome=c":          {"--outcome=cancelled"},
		"queue wo":                     {"work"},
		"queue pause wo":               {"work"},
		"queue set work --backoff lin": {"linear"},
		"completion ":                  {"bash", "zsh", "fish"},
		"serve --log-level d":          {"debug"},
		"post -f ":                     nil, // a file
		"events 1":                     nil,
		"nowhere x":                    nil,
		"push ro":                      {"rotate"},
		"push wo":                      {"work"},
		"push set work --format cl":    {"cloudevents"},
		"sources get sh":               {"shop"},
		"owners -o j":                  {"json", "jsonl"}, // of the command that runs by default
		"owners --lim":                 {"--limit"},
	} {
		until(t, fmt.Sprintf("%q is completed by %q", line, want), func() bool { // names only come if the server is quick
			return slices.Equal(p.complete(strings.Split(line, " ")...), want)
		})
	}
	if all := p.complete(""); !slices.Contains(all, "serve") || !slices.Contains(all, "queues") || slices.Contains(all, "__complete") {
		t.Errorf("the commands are %q", all)
	}
	if got := p.complete("queues", "--url"); !slices.Equal(got, []string{"--url"}) {
		t.Errorf("--url is completed by %q", got)
	}
}

// The scripts run in their shells, which continuous integration installs. Each line is completed at its end.
func TestCompletionScriptsWorkInTheirShells(t *testing.T) {
	t.Parallel()
	p := setupFront(t, "QUEUED_SECRET_KEY=a-key-that-seals-secrets")
	p.cliWith(`{"kind":"token","queue":"work","secrets":["one"]}`, nil, "sources", "put", "shop").want(0)
	p.cli("post", "-q", "mail:out", `{}`).want(0)
	dir := filepath.Dir(commandBinary(t))
	for shell, script := range map[string]string{
		// As bash does when the tab key is pressed: it splits the line, calls the function, and takes the replies.
		"bash": `
source <(queued completion bash)
complete_line() {
  COMP_LINE=$1 COMP_POINT=${#1}
  local spaced=${1//=/ = }
  spaced=${spaced//:/ : }
  read -ra COMP_WORDS <<<"$spaced"
  [[ $1 == *[[:space:]=:] ]] && [[ $1 == *" " ]] && COMP_WORDS+=("")
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
  _queued
  echo "${COMPREPLY[*]}"
}
complete_line "queued cl"
complete_line "queued history --outcome=c"
complete_line "queued claim -q mail:o"
complete_line "queued completion "`,
		"fish": `
queued completion fish | source
for line in "queued cl" "queued history --outcome=c" "queued claim -q mail:o" "queued completion "
  complete -C "$line" | cut -f 1 | string join ' '
end`,
		// zsh completes in its line editor alone, which needs a terminal: _describe is replaced by what writes its candidates.
		"zsh": `
compdef() { : }
source <(queued completion zsh)
_describe() { print -r -- "${${candidates%%:#}//\\:/:}" }
_files() { print files }
complete_line() { words=("$@") CURRENT=$#; _queued }
complete_line queued cl
complete_line queued history --outcome=c
complete_line queued claim -q mail:o
complete_line queued completion ""`,
	} {
		t.Run(shell, func(t *testing.T) {
			t.Parallel()
			path, err := exec.LookPath(shell)
			if err != nil && os.Getenv("CI") != "true" {
				t.Skipf("%s is not on this machine", shell)
			}
			args := map[string][]string{"zsh": {"-f", "-c", script}, "fish": {"--no-config", "-c", script}}[shell]
			if args == nil {
				args = []string{"--norc", "-c", script}
			}
			home := t.TempDir()
			until(t, "the words are completed", func() bool { // names only come if the server is quick
				cmd := exec.CommandContext(t.Context(), path, args...)
				cmd.Env = []string{"PATH=" + dir + ":" + os.Getenv("PATH"), "QUEUED_URL=http://" + p.addr, "HOME=" + home}
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
				t.Logf("%s", out)
				return !slices.ContainsFunc([]string{"claim", "cancelled", "out", "bash"}, func(want string) bool { return !strings.Contains(string(out), want) })
			})
		})
	}
}
