package cli

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/term"
)

// IsTerminal reports whether a reader or writer is a terminal.
func IsTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// format returns the format to write in.
func (e *Env) format(output string) string {
	switch {
	case output != formatAuto:
		return output
	case IsTerminal(e.Stdout):
		return formatTable
	}
	return formatJSONL
}

// width returns how many characters fit into a line of standard output; 0: as many as there are. It is $COLUMNS, or the width of the
// terminal.
func (e *Env) width() int {
	for _, entry := range e.Environ {
		if text, ok := strings.CutPrefix(entry, "COLUMNS="); ok {
			if n, err := strconv.Atoi(text); err == nil && n > 0 {
				return n
			}
		}
	}
	file, ok := e.Stdout.(*os.File)
	if !ok {
		return 0
	}
	width, _, err := term.GetSize(int(file.Fd()))
	if err != nil { // it is no terminal
		return 0
	}
	return width
}

// notef writes a line about the answer to standard error.
func (e *Env) notef(format string, args ...any) {
	_, _ = fmt.Fprintln(e.Stderr, PrintableLines(fmt.Sprintf(format, args...))) // the answer matters more
}

// confirm asks a question on the terminal. Without a terminal nobody can answer: then the command needs --yes.
func (e *Env) confirm(question string) error {
	if !IsTerminal(e.Stdin) {
		return usagef("nobody can be asked without a terminal; pass --yes")
	}
	_, _ = fmt.Fprint(e.Stderr, PrintableLines(question)+" [y/N] ")
	answer, _ := bufio.NewReader(e.Stdin).ReadString('\n')
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return errors.New("nothing was changed")
}
