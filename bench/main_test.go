package main

import (
	"io"
	"testing"
)

func TestCommandLineIsRefusedWhereItMakesNoSense(t *testing.T) {
	t.Parallel()
	const url = "postgres://localhost/"
	for name, test := range map[string]struct {
		args  []string
		url   string // in the environment
		fails bool
	}{
		"defaults":              {nil, url, false},
		"a server":              {[]string{"--database-url", url}, "", false},
		"no server":             {nil, "", true},
		"no rounds":             {[]string{"--rounds", "0"}, url, true},
		"no time":               {[]string{"--duration", "10ms"}, url, true},
		"an argument":           {[]string{"floor"}, url, true},
		"a peer":                {[]string{"--peer", "pgmq=pgmq.sql"}, url, false},
		"a peer without a name": {[]string{"--peer", "pgmq.sql"}, url, true},
		"a peer without a file": {[]string{"--peer", "pgmq="}, url, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := parse(test.args, func(string) string { return test.url }, io.Discard)
			if (err != nil) != test.fails {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestOnlyTakesNamesAndTheirBeginnings(t *testing.T) {
	t.Parallel()
	cfg, err := parse([]string{"--only", "floor,river.copy", "--only", "single"}, func(string) string { return "postgres://" }, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	for part, want := range map[string]bool{
		"floor.one": true, "floor.batch": true, "river.copy": true, "river.bench": false, "single.64": true, "batch": false, "floors": false,
	} {
		if got := cfg.wants(part); got != want {
			t.Errorf("%s: got %t", part, got)
		}
	}
}

func TestPeerWithoutScriptsIsRefused(t *testing.T) {
	t.Parallel()
	if _, err := peer("pgbench", peerFile{"nobody", "nobody.sql"}); err == nil {
		t.Error("taken")
	}
}
