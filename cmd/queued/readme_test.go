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
