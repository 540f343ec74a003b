//go:build linux

package doctest

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

// A page is a document with its commands.
type page struct {
	lines  []string
	server string // settings of its server, as a shell reads them
	blocks []*block
	notRun []string // reasons
}

// A block is a console block that is run.
type block struct {
	first    string // what is run before it
	commands []*command
}

// A command is what follows a prompt, with the lines that it is said to print: those from line start to line end of the page.
type command struct {
	prompt     int // the line of its prompt
	indent     string
	text       string
	start, end int
}

func (p *page) expected(c *command) []string {
	var lines []string
	for _, line := range p.lines[c.start:c.end] {
		lines = append(lines, strings.TrimPrefix(line, c.indent))
	}
	return lines
}

var (
	fence   = regexp.MustCompile("^( *)```console$")
	comment = regexp.MustCompile(`(?s)^<!-- (not run|first|server):\s*(.*?)\s*-->$`)
)

// readPage reads a page, and refuses comments that mean nothing.
func readPage(t *testing.T, file string) *page {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	p := &page{lines: strings.Split(string(text), "\n")}
	var first, notRun string
	for i := 0; i < len(p.lines); i++ {
		line := p.lines[i]
		if strings.HasPrefix(strings.TrimSpace(line), "<!--") {
			begin := i
			for !strings.Contains(p.lines[i], "-->") {
				i++
			}
			said := comment.FindStringSubmatch(strings.TrimSpace(strings.Join(p.lines[begin:i+1], "\n")))
			if said == nil {
				t.Fatalf("%s:%d: a comment is one of not run, first and server", file, begin+1)
			}
			switch said[1] {
			case "not run":
				notRun = said[2]
			case "first":
				first += said[2] + "\n"
			case "server":
				p.server = said[2]
			}
			continue
		}
		open := fence.FindStringSubmatch(line)
		if open == nil {
			if strings.TrimSpace(line) != "" && first+notRun != "" {
				t.Fatalf("%s:%d: a comment is not right before a block", file, i+1)
			}
			continue
		}
		begin := i + 1
		for i++; p.lines[i] != open[1]+"```"; i++ {
		}
		if notRun != "" {
			p.notRun = append(p.notRun, notRun)
		} else {
			p.blocks = append(p.blocks, p.readBlock(t, file, open[1], begin, i))
			p.blocks[len(p.blocks)-1].first = first
		}
		first, notRun = "", ""
	}
	return p
}

// readBlock reads the commands of a block. A command goes on over lines that end with a backslash, and until its quotes and functions are closed.
func (p *page) readBlock(t *testing.T, file, indent string, begin, end int) *block {
	t.Helper()
	b := new(block)
	for i := begin; i < end; {
		text, isPrompt := strings.CutPrefix(strings.TrimPrefix(p.lines[i], indent), "$ ")
		if !isPrompt {
			t.Fatalf("%s:%d: a block begins with a prompt", file, i+1)
		}
		c := &command{prompt: i, indent: indent}
		for i++; strings.HasSuffix(text, "\\") || !isComplete(text); i++ {
			if i >= end {
				t.Fatalf("%s:%d: the command has no end", file, c.prompt+1)
			}
			text += "\n" + strings.TrimPrefix(p.lines[i], indent)
		}
		c.text, c.start = text, i
		for i < end && !strings.HasPrefix(p.lines[i], indent+"$ ") {
			i++
		}
		c.end = i
		b.commands = append(b.commands, c)
	}
	return b
}

// write writes a page, with the lines that replace those of commands.
func (p *page) write(t *testing.T, file string, printed map[*command][]string, texts map[*command]string) {
	t.Helper()
	var out []string
	next := 0
	for _, b := range p.blocks {
		for _, c := range b.commands {
			out = append(out, p.lines[next:c.prompt]...)
			text, isChanged := texts[c]
			if !isChanged {
				text = c.text
			}
			for i, line := range strings.Split(text, "\n") {
				if i == 0 {
					line = "$ " + line
				}
				out = append(out, strings.TrimRight(c.indent+line, " "))
			}
			lines, isChanged := printed[c]
			if !isChanged {
				lines = p.expected(c)
			}
			for _, line := range lines {
				if line != "" {
					line = c.indent + line
				}
				out = append(out, line)
			}
			next = c.end
		}
	}
	out = append(out, p.lines[next:]...)
	if err := os.WriteFile(file, []byte(strings.Join(out, "\n")), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (p *page) place(file string, c *command) string { return fmt.Sprintf("%s:%d", file, c.prompt+1) }
