package main

import (
	"bytes"
	"context"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"
)

// parse parses args and environ without running the command.
func parse(t *testing.T, args, environ []string) (*grammar, *settingsReader) {
	t.Helper()
	var g grammar
	reader := newSettingsReader(environ)
	parser, err := newParser(&g, reader, kong.Writers(io.Discard, io.Discard))
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := parser.Parse(args)
	if err == nil {
		err = reader.finish(parsed)
	}
	if err != nil {
		t.Fatalf("parsing %q with %q: %v", args, environ, err)
	}
	return &g, reader
}

// runHere runs a command line that ends before it opens anything, in this process.
func runHere(t *testing.T, args, environ []string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	var out, errs bytes.Buffer
	code = run(ctx, args, append([]string{"QUEUED_DATA_DIR=" + filepath.Join(t.TempDir(), "data")}, environ...), strings.NewReader(""), &out, &errs)
	return code, out.String(), errs.String()
}

// allowEmbedded has cmp compare the embedded structs, too.
var allowEmbedded = cmp.AllowUnexported(settings{}, serverSettings{}, httpSettings{}, frontSettings{})

func TestDefaultsAreTheDocumentedOnes(t *testing.T) {
	t.Parallel()
	g, _ := parse(t, nil, nil)
	want := settings{
		serverSettings: serverSettings{StartTimeout: 5 * time.Minute, Adopt: "ask", Background: "on"},
		httpSettings: httpSettings{
			frontSettings:  frontSettings{listenSettings: listenSettings{Listen: "127.0.0.1:8080"}, ShutdownTimeout: 30 * time.Second, AccessLog: "slow"},
			UIPayloads:     "shown",
			AuditRetention: 2160 * time.Hour,
		},
		queueSettings: queueSettings{Queues: "any", MaxAttempts: 3, SweepInterval: 10 * time.Second, KeyRetention: 24 * time.Hour, MisfireGrace: time.Minute, OccurrenceRetention: 2160 * time.Hour},
		limitSettings: limitSettings{
			MaxBody: 1 << 20, MaxBatchBody: 8 << 20, QueryTimeout: 5 * time.Second,
			RequestTimeout: 15 * time.Second, MaxPending: 64 << 20,
		},
		logSettings: logSettings{LogLevel: "info", LogFormat: "auto"},
	}
	if diff := cmp.Diff(want, g.Serve.settings, allowEmbedded); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
}

func TestEverySettingHasAFlagAndAVariable(t *testing.T) {
	t.Parallel()
	given := map[string]string{
		"data-dir": "/srv/queued", "start-timeout": "1m", "require-sync": "true", "no-migrate": "true", "force-migrate": "true", "adopt": "always", "background": "off", "cell": "17",
		"listen": "[::1]:9", "hosts": "a.example, 10.0.0.5,[::1]", "tls-cert": "/tls/cert.pem", "tls-key": "/tls/key.pem", "tls-client-ca": "/tls/ca.pem", "drain-delay": "1s", "shutdown-timeout": "2s",
		"queues": "declared", "max-attempts": "7", "sweep-interval": "3s", "max-vt-age": "4h", "history-retention": "720h", "key-retention": "48h",
		"misfire-grace": "5m", "occurrence-retention": "49h",
		"push-allow": "10.1.0.0/16, billing.internal,*.svc.cluster.local",
		"max-body":   "64KiB", "max-batch-body": "2097152", "max-body-memory": "32MiB", "query-timeout": "250ms",
		"request-timeout": "4s", "max-pending": "2MiB", "max-conns": "20", "access-log": "all", "ui-payloads": "hidden", "audit-retention": "50h", "log-level": "DEBUG", "log-format": "json",
	}
	secrets := map[string]string{
		"database-url": "postgres://app@db/queued", "listen-url": "postgres://app@direct/queued", "api-key": "sixteen-characters", "push-proxy": "http://u:p@proxy:3128",
		"secret-key": "the-first-key-of-two,\n the-other-key-of-two",
	}
	want := settings{
		databaseSettings: databaseSettings{DatabaseURL: secrets["database-url"], DataDir: "/srv/queued"},
		serverSettings:   serverSettings{ListenURL: secrets["listen-url"], StartTimeout: time.Minute, RequireSync: true, NoMigrate: true, Adopt: "always", Background: "off", Cell: 17, migrateSettings: migrateSettings{ForceMigrate: true}},
		secretSettings:   secretSettings{SecretKey: []string{"the-first-key-of-two", "the-other-key-of-two"}},
		httpSettings: httpSettings{
			frontSettings: frontSettings{
				listenSettings: listenSettings{Listen: "[::1]:9", TLSCert: "/tls/cert.pem"}, Hosts: []string{"a.example", "10.0.0.5", "::1"}, TLSKey: "/tls/key.pem", TLSClientCA: "/tls/ca.pem", DrainDelay: time.Second,
				ShutdownTimeout: 2 * time.Second, AccessLog: "all",
			},
			APIKey: secrets["api-key"], UIPayloads: "hidden", AuditRetention: 50 * time.Hour,
		},
		queueSettings: queueSettings{
			Queues:      "declared",
			MaxAttempts: 7, SweepInterval: 3 * time.Second, MaxVTAge: 4 * time.Hour, HistoryRetention: 720 * time.Hour,
			KeyRetention: 48 * time.Hour, MisfireGrace: 5 * time.Minute, OccurrenceRetention: 49 * time.Hour,
		},
		pushSettings: pushSettings{PushAllow: "10.1.0.0/16,billing.internal,*.svc.cluster.local", PushProxy: secrets["push-proxy"]},
		limitSettings: limitSettings{
			MaxBody: 64 << 10, MaxBatchBody: 2 << 20, MaxBodyMemory: 32 << 20, QueryTimeout: 250 * time.Millisecond, MaxConns: 20,
			RequestTimeout: 4 * time.Second, MaxPending: 2 << 20,
		},
		logSettings: logSettings{LogLevel: "debug", LogFormat: "json"},
	}
	direct, files := maps.Clone(given), maps.Clone(given)
	for name, secret := range secrets {
		direct[name] = secret
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(secret+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		files[name+"-file"] = path
	}
	for _, flag := range serveFlags(t) {
		if direct[flag.Name] == "" && files[flag.Name] == "" {
			t.Errorf("this test leaves --%s out", flag.Name)
		}
	}
	for name, given := range map[string]map[string]string{"direct": direct, "from files": files} {
		var flags, environ []string
		for flag, value := range given {
			flags = append(flags, "--"+flag+"="+value)
			environ = append(environ, envName(flag)+"="+value)
		}
		want := want
		want.DatabaseURLFile, want.ListenURLFile, want.APIKeyFile = given["database-url-file"], given["listen-url-file"], given["api-key-file"]
		want.PushProxyFile = given["push-proxy-file"]
		want.SecretKeyFile = given["secret-key-file"]
		for source, args := range map[string][2][]string{"variables": {nil, environ}, "flags": {flags, nil}} {
			got, _ := parse(t, args[0], args[1])
			if diff := cmp.Diff(want, got.Serve.settings, allowEmbedded); diff != "" {
				t.Errorf("%s, %s (-want +got):\n%s", source, name, diff)
			}
		}
	}
}

// serveFlags returns the settings of serve, in the order of their declaration.
func serveFlags(t *testing.T) []*kong.Flag {
	t.Helper()
	return flagsOf(t, "serve")
}

// flagsOf returns the settings of a command, in the order of their declaration.
func flagsOf(t *testing.T, name string) []*kong.Flag {
	t.Helper()
	var g grammar
	parser, err := newParser(&g, newSettingsReader(nil))
	if err != nil {
		t.Fatal(err)
	}
	var flags []*kong.Flag
	for _, command := range parser.Model.Leaves(false) {
		if command.Name == name {
			flags = slices.DeleteFunc(command.Flags, func(flag *kong.Flag) bool { return !isSetting(flag.Value) })
		}
	}
	if len(flags) == 0 {
		t.Fatalf("%s has no settings", name)
	}
	return flags
}

func TestWrongSettingsOfTheGatewayAreReported(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ args, want string }{
		{"--cells=0=http://a,0=http://b", "--cells: got cell 0 twice"},
		{"--cells=256=http://a", `--cells: got "256=http://a"; takes cells`},
		{"--cells=0=http://a/path", "--cells: got a URL for cell 0 that does not fit"},
		{"--cells=0=http://u:hunter2@a", "--cells: got a URL for cell 0 that does not fit"},
		{"--cells=1=http://a", "--cells: there must be home, which is cell 0"},
		{"--listen=:0 --cells=0=http://a", "--listen: [::]:"},
		{"--listen=127.0.0.1:0 --cells=0=http://a --cert=/x", "--cert: a certificate needs its private key; set QUEUED_CLIENT_KEY, too"},
		{"--listen=127.0.0.1:0 --cells=0=http://a --cacert=/no/such/file", "--cacert: open /no/such/file"},
		{"--listen=127.0.0.1:0", "QUEUED_CELLS: there must be home"},
	} {
		code, _, stderr := runHere(t, append([]string{"gateway"}, strings.Fields(test.args)...), nil)
		if code != exitUsage || !strings.HasPrefix(stderr, "queued: "+test.want) || strings.Contains(stderr, "hunter2") {
			t.Errorf("%s: exit code %d, %q; want %q", test.args, code, stderr, test.want)
		}
	}
}

func TestFlagWinsOverVariable(t *testing.T) {
	t.Parallel()
	g, reader := parse(t, []string{"serve", "--max-attempts", "5"}, []string{"QUEUED_MAX_ATTEMPTS=9", "QUEUED_MAX_CONNS=8"})
	if got := g.Serve.MaxAttempts; got != 5 {
		t.Errorf("max attempts %d, want the flag's 5", got)
	}
	if got := reader.name("max-attempts"); got != "--max-attempts" {
		t.Errorf("its name is %s, want the flag", got)
	}
	if got := reader.name("max-conns"); got != "QUEUED_MAX_CONNS" {
		t.Errorf("its name is %s, want the variable", got)
	}
}

func TestEmptyVariableCountsAsUnset(t *testing.T) {
	t.Parallel()
	want, _ := parse(t, nil, nil)
	got, reader := parse(t, nil, []string{"QUEUED_LISTEN=", "QUEUED_API_KEY=", "QUEUED_DATABASE_URL=", "QUEUED_MAX_BODY=", "QUEUED_NO_MIGRATE="})
	if diff := cmp.Diff(want.Serve.settings, got.Serve.settings, allowEmbedded); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if len(reader.names) > 0 {
		t.Errorf("the empty variables count as given: %v", reader.names)
	}
}

func TestWrongValueIsReportedWithAllowedValues(t *testing.T) {
	t.Parallel()
	const duration, moreThanZero = `takes a duration such as "30s", "10m" or "7d"`, `takes a duration such as "30s", "10m" or "7d", more than zero`
	tests := []struct{ flag, value, want string }{
		{"sweep-interval", "10 minutes", `got "10 minutes"; takes a duration such as "30s", "10m" or "7d", at least 100ms, or "off"`},
		{"sweep-interval", "99ms", `got "99ms"; takes a duration such as "30s", "10m" or "7d", at least 100ms, or "off"`},
		{"sweep-interval", "-5s", `got "-5s"; takes a duration such as "30s", "10m" or "7d", at least 100ms, or "off"`},
		{"query-timeout", "597h", `got "597h"; takes a duration such as "30s", "10m" or "7d", more than zero, up to 24h`},
		{"max-vt-age", "1day", `got "1day"; ` + duration},
		{"max-vt-age", "0s", `got "0s"; ` + moreThanZero},
		{"history-retention", "1M", `got "1M"; ` + duration},
		{"history-retention", "-1h", `got "-1h"; ` + moreThanZero},
		{"key-retention", "0s", `got "0s"; ` + moreThanZero + ", up to 87600h"},
		{"misfire-grace", "0s", `got "0s"; ` + moreThanZero},
		{"occurrence-retention", "47h", `got "47h"; takes a duration such as "30s", "10m" or "7d", at least 48h, or "off"`},
		{"max-vt-age", "99999999w", `got "99999999w"; ` + duration + ", up to 106751d"},
		{"query-timeout", "5", `got "5"; ` + duration},
		{"shutdown-timeout", "soon", `got "soon"; ` + duration},
		{"drain-delay", "-1s", `got "-1s"; ` + duration},
		{"queues", "some", `got "some"; takes any or declared`},
		{"max-attempts", "0", `got "0"; takes a whole number from 1 to 2147483647`},
		{"max-attempts", "3.5", `got "3.5"; takes a whole number from 1 to 2147483647`},
		{"max-attempts", "99999999999999999999", `got "99999999999999999999"; takes a whole number from 1 to 2147483647`},
		{"max-conns", "1", `got "1"; takes a whole number from 2 to 10000`},
		{"max-body", "1MB", `got "1MB"; takes a number of bytes such as "65536", "512KiB" or "4MiB", up to 256MiB`},
		{"max-body", "0", `got "0"; takes a number of bytes such as "65536", "512KiB" or "4MiB", up to 256MiB`},
		{"max-body", "9223372036854775807KiB", `got "9223372036854775807KiB"; takes a number of bytes such as "65536", "512KiB" or "4MiB", up to 256MiB`},
		{"max-batch-body", "2GiB", `got "2GiB"; takes a number of bytes such as "65536", "512KiB" or "4MiB", up to 1GiB`},
		{"listen", "8080", `got "8080"; takes an address such as "127.0.0.1:8080", "[::1]:8080", "localhost:8080", or ":8080" for every interface`},
		{"listen", "localhost", `got "localhost"; takes an address such as`},
		{"listen", "::1:8080", `got "::1:8080"; takes an address such as`},
		{"listen", "127.0.0.1:65536", `got "127.0.0.1:65536"; takes an address such as`},
		{"listen", "127.0.0.1:http", `got "127.0.0.1:http"; takes an address such as`},
		{"listen", "my host:80", `got "my host:80"; takes an address such as`},
		{"listen", "http://localhost:8080", `got "http://localhost:8080"; takes an address such as`},
		{"log-level", "verbose", `got "verbose"; takes trace, debug, info, warn or error`},
		{"log-format", "xml", `got "xml"; takes auto, json or console`},
		{"no-migrate", "maybe", `got "maybe"; takes true or false`},
		{"api-key", "two words", `got a value that is not shown; takes one or more visible ASCII characters without spaces`},
		{"api-key", "schlüssel", `got a value that is not shown; takes one or more visible ASCII characters without spaces`},
		{"secret-key", "shortsecret", `got a value that is not shown: key 1: must have at least 16 bytes, not 11; takes one key or more`},
		{"secret-key", "a-key-that-is-long-enough,short", `: key 2: must have at least 16 bytes, not 5; takes one key or more`},
		{"secret-key", " , ", `got a value that is not shown: there must be a key`},
		{"database-url", "localhost:5432/db", `got a value that is not shown, as it may hold a password; takes a URL such as "postgres://`},
		{"database-url", "mysql://u:p@h/db", `got a value that is not shown, as it may hold a password; takes a URL such as "postgres://`},
		{"database-url", "postgres://u@h/db?sslmode=maybe", `: failed to configure TLS (sslmode is invalid)`},
		{"database-url", "postgres://u@h:port/db", `: invalid port`},
		{"push-allow", "10.0.0.1/8", `such as "10.1.0.0/16,billing.internal": this entry has bits beyond its length; the network is 10.0.0.0/8`},
		{"push-allow", "billing.internal,", `got nothing; takes networks, addresses, names, or "*." and a suffix of names, separated by commas`},
		{"push-allow", "https://billing.internal", `got "https://billing.internal"; takes networks, addresses, names`},
		{"push-proxy", "ftp://proxy:hunter2@h", `got a value that is not shown, as it may hold a password; takes a URL such as "http://proxy.internal:3128"`},
		{"push-proxy", "proxy.internal:3128", `got a value that is not shown, as it may hold a password; takes a URL such as "http://proxy.internal:3128"`},
		{"database-url", "postgres://u:a/b@h/db", `got a URL with an "@" where none belongs`},
	}
	for _, test := range tests {
		t.Run(test.flag+"="+test.value, func(t *testing.T) {
			t.Parallel()
			name := envName(test.flag)
			code, stdout, stderr := runHere(t, nil, []string{name + "=" + test.value})
			if code != exitUsage || stdout != "" {
				t.Errorf("as a variable: exit code %d, standard output %q; want %d and none", code, stdout, exitUsage)
			}
			if !strings.HasPrefix(stderr, "queued: "+name+": ") || !strings.Contains(stderr, test.want) {
				t.Errorf("as a variable: %q does not name %s and say %q", stderr, name, test.want)
			}
			code, _, stderr = runHere(t, []string{"--" + test.flag + "=" + test.value}, nil)
			if code != exitUsage || !strings.HasPrefix(stderr, "queued: --"+test.flag+": ") || !strings.Contains(stderr, test.want) {
				t.Errorf("as a flag: exit code %d, %q does not name --%s and say %q", code, stderr, test.flag, test.want)
			}
		})
	}
}

func TestEmptyFlagIsRefused(t *testing.T) {
	t.Parallel()
	for _, flag := range serveFlags(t) {
		code, _, stderr := runHere(t, []string{"serve", "--" + flag.Name + "="}, nil)
		if want := "queued: --" + flag.Name + ": got nothing; takes "; code != exitUsage || !strings.HasPrefix(stderr, want) {
			t.Errorf("exit code %d and %q, want %d and %q", code, stderr, exitUsage, want)
		}
	}
}

func TestAllWrongSettingsAreReportedTogether(t *testing.T) {
	t.Parallel()
	code, _, stderr := runHere(t, []string{"serve", "--max-conns=none"}, []string{"QUEUED_LISTEN=here", "QUEUED_QUERY_TIMEOUT=5"})
	if code != exitUsage {
		t.Errorf("exit code %d, want %d", code, exitUsage)
	}
	for _, want := range []string{"3 settings are wrong", "\n  --max-conns: ", "\n  QUEUED_LISTEN: ", "\n  QUEUED_QUERY_TIMEOUT: "} {
		if !strings.Contains(stderr, want) {
			t.Errorf("%q does not contain %q", stderr, want)
		}
	}
}

func TestOtherCommandsIgnoreWrongSettingsOfServe(t *testing.T) {
	t.Parallel()
	code, stdout, stderr := runHere(t, []string{"version"}, []string{"QUEUED_SWEEP_INTERVAL=10 minutes"})
	if code != exitOK || !strings.HasPrefix(stdout, "queued ") {
		t.Errorf("exit code %d, %q, %q", code, stdout, stderr)
	}
}

func TestUnknownFlagIsReportedWithTheClosest(t *testing.T) {
	t.Parallel()
	code, _, stderr := runHere(t, []string{"--listn", ":1"}, nil)
	if code != exitUsage || !strings.Contains(stderr, `did you mean "--listen"?`) {
		t.Errorf("exit code %d, %q", code, stderr)
	}
}

func TestPasswordInTheWrongPlaceIsNotRepeated(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"postgres://u:hunter2@h/d"},
		{"serve", "postgres://u:hunter2@h/d"},
		{"serve", "--url=postgres://u:hunter2@h/d"},
		{"serve", "password=hunter2"},
		{"--no-migrate=postgres://u:hunter2@h/d"},
	} {
		code, _, stderr := runHere(t, args, nil)
		if code != exitUsage || strings.Contains(stderr, "hunter2") {
			t.Errorf("%v: exit code %d, %q", args, code, stderr)
		}
	}
}

func TestHelpShowsEverySettingAndNoValue(t *testing.T) {
	t.Parallel()
	const secret, password = "s3cr3t-key-of-tests", "hunter2"
	environ := []string{
		"QUEUED_API_KEY=" + secret, "QUEUED_DATABASE_URL=postgres://u:" + password + "@h/db",
		"QUEUED_SWEEP_INTERVAL=wrong", // help is shown all the same
	}
	code, stdout, stderr := runHere(t, []string{"serve", "--help"}, environ)
	if code != exitOK || stderr != "" {
		t.Fatalf("exit code %d, %q", code, stderr)
	}
	for _, flag := range serveFlags(t) {
		if !strings.Contains(stdout, "--"+flag.Name) || !strings.Contains(stdout, "$"+envName(flag.Name)) {
			t.Errorf("--%s or %s is missing", flag.Name, envName(flag.Name))
		}
	}
	code, top, _ := runHere(t, []string{"--help"}, environ)
	if code != exitOK {
		t.Errorf("exit code %d", code)
	}
	for _, want := range []string{"serve", "migrate", "healthcheck", "version", "Where to begin"} {
		if !strings.Contains(top, want) {
			t.Errorf("queued --help does not mention %q", want)
		}
	}
	for _, hidden := range []string{secret, password} {
		if strings.Contains(stdout+top, hidden) {
			t.Errorf("help shows %q", hidden)
		}
	}
}

func TestWrongSecretFileIsAUsageError(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	tests := map[string]struct {
		environ []string
		want    string
	}{
		"both forms of the key": {
			[]string{"QUEUED_API_KEY=k", "QUEUED_API_KEY_FILE=" + file("key", "k")},
			"QUEUED_API_KEY_FILE: QUEUED_API_KEY is set, too; set one of them",
		},
		"both forms of the URL": {
			[]string{"QUEUED_DATABASE_URL=postgres://h/d", "QUEUED_DATABASE_URL_FILE=" + file("url", "postgres://h/d")},
			"QUEUED_DATABASE_URL_FILE: QUEUED_DATABASE_URL is set, too; set one of them",
		},
		"no such file": {
			[]string{"QUEUED_API_KEY_FILE=" + filepath.Join(dir, "missing")}, "QUEUED_API_KEY_FILE: open ",
		},
		"short key": {
			[]string{"QUEUED_API_KEY=fifteen-letters"}, "QUEUED_API_KEY: got a value of 15 characters, which is not shown; takes at least 16",
		},
		"short key in a file": {
			[]string{"QUEUED_API_KEY_FILE=" + file("short", "development")}, "got a value of 11 characters, which is not shown; takes at least 16",
		},
		"host with a port": {
			[]string{"QUEUED_HOSTS=a.example:80"}, "QUEUED_HOSTS: got \"a.example:80\"; takes names or addresses without ports",
		},
		"empty file": {
			[]string{"QUEUED_API_KEY_FILE=" + file("empty", "\n")}, "got nothing; takes",
		},
		"wrong URL in the file": {
			[]string{"QUEUED_DATABASE_URL_FILE=" + file("wrong", "pgsql://u:hunter2@h/d")}, "got a value that is not shown",
		},
		"giant file": {
			[]string{"QUEUED_API_KEY_FILE=" + file("giant", strings.Repeat("k", maxSecretFile+1))}, "more than any value needs",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, _, stderr := runHere(t, []string{"serve"}, test.environ)
			if code != exitUsage || !strings.Contains(stderr, test.want) || strings.Contains(stderr, "hunter2") {
				t.Errorf("exit code %d and %q, want %d and %q", code, stderr, exitUsage, test.want)
			}
		})
	}
}

func TestInterruptedCommandExitsWith130(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stderr bytes.Buffer
	code := run(ctx, []string{"healthcheck"}, nil, strings.NewReader(""), io.Discard, &stderr)
	if code != exitInterrupted || stderr.String() != "queued: interrupted\n" {
		t.Errorf("exit code %d, %q", code, stderr.String())
	}
}
