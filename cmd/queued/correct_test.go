package main

import (
	"strings"
	"testing"
)

func TestWrongCommandLinesAreAnsweredWithTheRightOne(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"list":                        `unexpected argument list: did you mean "queued queues"?`,
		"ls -o json":                  `did you mean "queued queues -o json"?`,
		"ps":                          `did you mean "queued top" or "queued workers"?`,
		"start":                       `did you mean "queued serve"?`,
		"stop":                        "Ctrl-C, or SIGTERM to its process, stops a server",
		"worker":                      `did you mean "queued workers"?`,
		"get 1":                       `did you mean "queued events 1"?`,
		"fetch mail":                  `did you mean "queued claim -q mail"?`,
		"logs -f":                     `did you mean "queued tail"? It goes on until Ctrl-C without a flag`,
		"queued list":                 `did you mean "queued queues"?`,
		"-q mail claim":               `unknown flag -q: did you mean "queued claim -q mail"?`,
		"--queue mail claim -n 2":     `did you mean "queued claim -n 2 --queue mail"?`,
		"--json queues":               `did you mean "queued queues -o json"?`,
		"pause mail":                  `did you mean "queued queue pause mail"?`,
		"pause":                       `did you mean "queued queue pause"?`,
		"cancel 12":                   `did you mean "queued schedules cancel 12" or "queued redrives cancel 12"?`,
		"list schedules":              `did you mean "queued schedules"?`,
		"list queue":                  `did you mean "queued queues"?`,
		"show event 7":                `did you mean "queued events 7"?`,
		"create key --scope admin":    `did you mean "queued keys create --scope admin"?`,
		"rm queue mail":               `did you mean "queued queue delete mail"?`,
		"queue mail pause":            `unexpected argument pause: did you mean "queued queue pause mail"?`,
		"groups mail ada pause":       `did you mean "queued groups pause mail ada"?`,
		"queues list":                 `did you mean "queued queues"?`,
		"queues mail":                 `did you mean "queued queue mail"?`,
		"queues mail purge -y":        `did you mean "queued queue purge mail -y"?`,
		"queue":                       `did you mean "queued queues"?`,
		"events list":                 `did you mean "queued events"?`,
		"schedule pause 3":            `did you mean "queued schedules pause 3"?`,
		"history mail":                `did you mean "queued history -q mail"?`,
		"work -- ./send.sh a":         `unexpected argument ./send.sh: did you mean "queued work --exec './send.sh a'"?`,
		"work mail -c 2 -- ./send.sh": `did you mean "queued work -q mail -c 2 --exec ./send.sh"?`,
		"work ./send.sh":              `did you mean "queued work --exec ./send.sh"?`,
		"tail -f":                     `unknown flag -f: did you mean "queued tail"? It goes on until Ctrl-C without a flag`,
		"tail order.** --follow":      `did you mean "queued tail 'order.**'"?`,
		"history --outcome":           "queued: --outcome needs a value: done, failed, expired or cancelled\n",
		"history --outcome -q mail":   "queued: --outcome needs a value: done, failed, expired or cancelled\n",
		"history --from":              "queued: --from needs a value: --from TIME\n",
		"claim -q":                    "queued: --queue needs a value: --queue QUEUE\n",
		"queues -x":                   "queued: unknown flag -x\n",
		"post --delay -5s {}":         `perhaps try --delay="-5s"?`,
		"mail":                        "queued: unexpected argument mail\n",
		"-q mail nothing":             "queued: unknown flag -q\n",
		"--listen :1 queues":          `queued: flag --listen applies to the default command "serve", not "queues"`,
		// What may be a secret is not repeated.
		"-q mail --key=qk_secret --database-url postgres://u:secret@h/d claim": "queued: unknown flag -q\n",
		"-q mail --key=qk_secret claim":                                        `did you mean "queued claim -q mail --key=…"?`,
		"-q mail --key qk_secret claim":                                        `did you mean "queued claim -q mail --key …"?`,
	} {
		code, stdout, stderr := runHere(t, strings.Fields(line), nil)
		if code != exitUsage || stdout != "" || !strings.Contains(stderr, want) || strings.Contains(stderr, "secret") {
			t.Errorf("%s: exit code %d, output %q and %q, want %q", line, code, stdout, stderr, want)
		}
	}
	if _, _, stderr := runHere(t, []string{"-q", "it's", "post", `{"a": 1}`}, nil); !strings.Contains(stderr, "did you mean `queued post '{\"a\": 1}' -q 'it'\\''s'`?") {
		t.Errorf("the words are not those of a shell: %s", stderr)
	}
}

func TestSeveralEventsForOneAreAnsweredWithWhatIsForSeveral(t *testing.T) {
	t.Parallel()
	p := &program{t: t, addr: closedAddress(t)}
	const two = "{\"n\":1}\n{\"n\":2}\n"
	p.cliWith(two, nil, "post", "-q", "mail").wantError(2, `that is more than one event: "queued post -f -" inserts each line of standard input, -f FILE each line of a file`)
	p.cli("post", two).wantError(2, `"queued post -f -"`)
	p.cliWith(two, nil, "publish", "order.placed").wantError(2, `"queued publish TOPIC -f -"`)
	p.cliWith(two, nil, "schedules", "create", "--cron", "@daily", "-z", "UTC").wantError(2, "a schedule has one")
	p.cli("post", `{"n":1} x`).wantError(2, "the event is not JSON: ")
}
