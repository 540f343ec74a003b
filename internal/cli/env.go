package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
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
	return widthOf(e.Stdout)
}

// widthOf returns the width of a terminal, in characters; 0: it is not known, or is none.
func widthOf(stream any) int {
	file, ok := stream.(*os.File)
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
	e.status.mu.Lock()
	defer e.status.mu.Unlock()
	e.status.clear()
	_, _ = fmt.Fprintln(e.Stderr, PrintableLines(fmt.Sprintf(format, args...))) // the answer matters more
}

// noteMissing notes that a gateway has answered without the part of some cells.
func (e *Env) noteMissing(cells []int) {
	e.notef("the part of cells %v is missing: they do not answer", cells)
}

// assent is the flag of the commands that ask before they act.
type assent struct {
	Yes bool `short:"y" help:"Do not ask."`
}

// confirm asks a question on the terminal, unless the flag answers it. Without a terminal nobody can answer: then the command needs --yes.
func (a *assent) confirm(ctx context.Context, env *Env, question string) error {
	if a.Yes {
		return nil
	}
	if !IsTerminal(env.Stdin) {
		return usagef("nobody can be asked without a terminal; pass --yes")
	}
	_, _ = fmt.Fprint(env.Stderr, PrintableLines(question)+" [y/N] ")
	input := env.input(ctx)
	defer func() { _ = input.Close() }()
	answer, err := bufio.NewReader(input).ReadString('\n')
	if errors.Is(err, context.Canceled) {
		return err
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return errors.New("nothing was changed")
}

// input returns standard input, whose reads fail when ctx ends: a read of a terminal or a pipe waits for somebody who may not come. The caller
// closes it, which leaves standard input open. It may have read further than the caller has.
func (e *Env) input(ctx context.Context) io.ReadCloser {
	reader, writer := io.Pipe()
	stop := context.AfterFunc(ctx, func() { _ = writer.CloseWithError(ctx.Err()) })
	go func() {
		defer stop()
		_, err := io.Copy(writer, e.Stdin)
		_ = writer.CloseWithError(err)
	}()
	return reader
}
