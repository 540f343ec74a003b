package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestReadmeHasEverySetting compares the README's table with the settings.
func TestReadmeHasEverySetting(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	lines := map[string]bool{}
	for line := range strings.Lines(string(readme)) {
		lines[strings.TrimSpace(line)] = true
	}
	table := settingsTable(t)
	for _, row := range table {
		if !lines[row] {
			t.Errorf("README.md lacks the row\n%s", row)
		}
	}
	if t.Failed() {
		t.Logf("the whole table is:\n%s", strings.Join(table, "\n"))
	}
}

// TestScalingHasEverySettingOfTheGateway compares the table in docs/scaling.md with the settings of gateway that serve has not.
func TestScalingHasEverySettingOfTheGateway(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/scaling.md")
	if err != nil {
		t.Fatal(err)
	}
	shared := map[string]bool{}
	for _, flag := range flagsOf(t, "serve") {
		shared[flag.Name] = true
	}
	for _, flag := range flagsOf(t, "start") {
		name := "`" + envName(flag.Name) + "`"
		if shared[flag.Name] {
			if !strings.Contains(string(text), name) {
				t.Errorf("docs/scaling.md does not mention %s", name)
			}
			continue
		}
		found := false
		for line := range strings.Lines(string(text)) {
			found = found || strings.HasPrefix(line, "| ") && strings.Contains(line, name) && strings.Contains(line, "`--"+flag.Name+"`") && strings.Contains(line, "`"+flag.Default+"`") == (flag.Default != "")
		}
		if !found {
			t.Errorf("docs/scaling.md has no row with %s, --%s and the default %q", name, flag.Name, flag.Default)
		}
	}
}

// settingsTable returns the rows of a Markdown table of all settings.
func settingsTable(t *testing.T) []string {
	t.Helper()
	rows := []string{"| variable | flag | default | what it says |", "| --- | --- | --- | --- |"}
	for _, flag := range serveFlags(t) {
		text := "none"
		switch note := flag.Tag.Get("unset"); {
		case note != "":
			text = note
		case flag.Default != "":
			text = "`" + flag.Default + "`"
		case flag.IsBool():
			text = "`false`"
		}
		rows = append(rows, fmt.Sprintf("| `%s` | `--%s` | %s | %s |", envName(flag.Name), flag.Name, text, strings.TrimSuffix(settingHelp[flag.Name], ".")))
	}
	return rows
}
