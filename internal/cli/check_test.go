package cli_test

import (
	"context"
	"strings"
	"testing"

	"github.com/queued/queued/internal/cli"
)

// refused runs a command with no server to reach, which has to be a usage error before it asks one, and returns what it says.
func refused(t *testing.T, args ...string) string {
	t.Helper()
	env := &cli.Env{Stdin: strings.NewReader("{}"), Stdout: new(lockedBuffer), Stderr: new(lockedBuffer)}
	defer env.End()
	err := execute(context.WithoutCancel(t.Context()), env, append(args, "--url", "http://127.0.0.1:1"))
	if cli.ExitCode(err) != 2 {
		t.Errorf("%q: %v, which is no usage error", args, err)
	}
	return env.Describe(err, nil)
}

func TestNamesThatAreEmptyAreUsageErrors(t *testing.T) {
	t.Parallel()
	for _, line := range []string{
		"post {} -q ''", "post {} --queue=", "post {} -t ''", "post {} --idempotency-key ''", "post -f ''", "post ''", "claim -q ''", "claim -t a -t ''",
		"work -q '' --exec true", "events -q ''", "history -q ''", "requeue -q ''", "requeue --outcome ''", "run -q ''", "queue ''", "groups ''", "groups show q ''", "queue purge '' -y",
		"queue delete '' -y", "queue move mail ''", "queue move '' mail", "schedules -q ''", "schedules --owner ''",
		"schedules create {} --at 2027-01-01T00:00:00Z -q ''", "schedules create {} --at 2027-01-01T00:00:00Z --topic ''", "publish '' {}",
		"publish a.b {} --subscription ''", "tail ''", "tail --subscription ''", "subscriptions show ''", "subscriptions put s --deliver ''",
		"subscriptions put s -t ''", "sources get ''", "history --source ''", "push ''", "owners show ''", "ack ''", "audit --target ''",
		"keys create --scope read --queue ''", "keys create --scope read --queue a,,b", "keys create --scope read --topic=",
	} {
		args := strings.Fields(line)
		for i := range args {
			args[i] = strings.TrimSuffix(args[i], "''")
		}
		if text := refused(t, args...); !strings.Contains(text, "must not be empty") {
			t.Errorf("%s: %s", line, text)
		}
	}
	if text, want := refused(t, "work", "--exec", ""), "--exec must not be empty; want the command to run for each event"; text != want {
		t.Errorf("got %q, want %q", text, want)
	}
	if text, want := refused(t, "claim", "-q", ""), "--queue must not be empty; leave out the flag, or give it a value"; text != want {
		t.Errorf("got %q, want %q", text, want)
	}
	if text, want := refused(t, "work", "--exec", " \t"), "--exec must not be empty"; !strings.Contains(text, want) {
		t.Errorf("got %q, want %q", text, want)
	}
}

func TestNumbersBeyondTheirRangeAreUsageErrors(t *testing.T) {
	t.Parallel()
	for line, says := range map[string]string{
		"claim --limit=0":                             "--limit is 0; want 1 to 1000",
		"claim --limit=-1":                            "--limit is -1; want 1 to 1000",
		"claim --limit=1001":                          "--limit is 1001; want 1 to 1000",
		"claim --lease=0s":                            "--lease is 0s; want 1us to 8760h",
		"claim --lease=-1m":                           "--lease is -1m0s; want 1us to 8760h",
		"claim --max-attempts=0":                      "--max-attempts is 0; want 1 to 2147483647",
		"claim --wait=-1s":                            "--wait is -1s; want 0s or more",
		"claim --timeout=0s":                          "--timeout is 0s; want 1ms or more",
		"extend 1.1.a --lease=0s":                     "--lease is 0s; want 1us to 8760h",
		"release 1.1.a --delay=-1s":                   "--delay is -1s; want 0s to 87600h",
		"nack 1.1.a --delay=-1s":                      "--delay is -1s; want 0s to 87600h",
		"post {} --max-attempts=0":                    "--max-attempts is 0; want 1 to 2147483647",
		"post {} --delay=-1s":                         "--delay is -1s; want 0s to 87600h",
		"post -f x --batch=0":                         "--batch is 0; want 1 to 1000",
		"post -f x --parallel=65":                     "--parallel is 65; want 1 to 64",
		"post -f x --skip=-1":                         "--skip is -1; want 0 or more",
		"work --exec true --max-attempts=0":           "--max-attempts is 0; want 1 to 2147483647",
		"work --exec true --concurrency=0":            "--concurrency is 0; want 1 or more",
		"work --exec true --lease=0s":                 "--lease is 0s; want 1s to 8760h",
		"run -q mail --limit=0":                       "--limit is 0; want 1 or more",
		"queue move a b --limit=0":                    "--limit is 0; want 1 or more",
		"queue set a --max-attempts=-1":               "--max-attempts is -1; want 0 to 2147483647",
		"groups a --limit=-1":                         "--limit is -1; want 0 or more",
		"groups set a b --concurrency=10001":          "--concurrency is 10001; want 0 to 10000",
		"queue set a --total=10001":                   "--total is 10001; want 0 to 10000",
		"groups hold a b 87601h":                      "for how long is 87601h0m0s; want 0s to 87600h",
		"events --limit=-1":                           "--limit is -1; want 0 or more",
		"history --limit=-1":                          "--limit is -1; want 0 or more",
		"requeue -q mail --limit=-1":                  "--limit is -1; want 0 or more",
		"schedules --due=0s":                          "--due is 0s; want 1us or more",
		"schedules create {} --cron=x --count=0":      "--count is 0; want 1 to 2147483647",
		"schedules preview --cron=x --limit=0":        "--limit is 0; want 1 to 1000",
		"subscriptions put s --max-waiting=0":         "--max-waiting is 0; want 1 to 1000000000",
		"subscriptions put s --expires-after=0s":      "--expires-after is 0s; want 1s to 87600h",
		"subscriptions read s --limit=0":              "--limit is 0; want 1 to 1000",
		"subscriptions read s --lease=0s":             "--lease is 0s; want 1s to 24h",
		"sources put s --if-version=0":                "--if-version is 0; want 1 or more",
		"tail --limit=0":                              "--limit is 0; want 1 or more",
		"top --looks=0":                               "--looks is 0; want 1 or more",
		"top --interval=1ms":                          "--interval is 1ms; want 100ms or more",
		"keys create --scope=read --expires-in=0s":    "--expires-in is 0s; want 1s or more",
		"keys create --scope=read --rate=0":           "--rate is 0; want 0.001 to 1000000",
		"keys create --scope=read --rate=1 --burst=0": "--burst is 0; want 1 to 1000000",
	} {
		if text := refused(t, strings.Fields(line)...); text != says {
			t.Errorf("%s: got %q, want %q", line, text, says)
		}
	}
}
