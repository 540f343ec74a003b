package cli

import (
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// Sequences of ECMA-48 and xterm that every terminal of today knows, the Windows console included.
const (
	otherScreen = "\x1b[?1049h\x1b[?25l" // the alternate screen, without the cursor
	firstScreen = "\x1b[?25h\x1b[?1049l"
	home        = "\x1b[H"
	clearLine   = "\x1b[K"
	clearBelow  = "\x1b[J"
	bold        = "\x1b[1m"
	plain       = "\x1b[0m"
)

// screen is a terminal that shows one page of text, which is written again and again.
type screen struct {
	in, out *os.File
	before  *term.State
	keys    chan string // the keys pressed: a character, or up, down, pageup or pagedown; closed when there is no more to come

	width, height int
	shown         string
}

// openScreen returns the terminal of a command, nil if it has none for its input and output.
func openScreen(env *Env) *screen {
	in, isFile := env.Stdin.(*os.File)
	out, ok := env.Stdout.(*os.File)
	if !isFile || !ok || !IsTerminal(in) || !IsTerminal(out) {
		return nil
	}
	return &screen{in: in, out: out, keys: make(chan string, 16)}
}

// begin takes the terminal over: it passes on every key at once, and shows none.
func (s *screen) begin() error {
	var err error
	if s.before, err = term.MakeRaw(int(s.in.Fd())); err != nil {
		return err
	}
	go s.read() // until the end of the program: a read from a terminal cannot be ended
	_, err = io.WriteString(s.out, otherScreen)
	return err
}

// end gives the terminal back as it was.
func (s *screen) end() {
	_, _ = io.WriteString(s.out, firstScreen)
	_ = term.Restore(int(s.in.Fd()), s.before)
}

// sequences are those that terminals send for keys that are no characters.
var sequences = map[string]string{
	"\x1b[A": "up", "\x1bOA": "up", "\x1b[B": "down", "\x1bOB": "down", "\x1b[5~": "pageup", "\x1b[6~": "pagedown",
}

func (s *screen) read() {
	defer close(s.keys)
	buffer := make([]byte, 64)
	for {
		n, err := s.in.Read(buffer)
		if err != nil {
			return
		}
		for _, key := range keysOf(string(buffer[:n])) {
			s.keys <- key
		}
	}
}

// keysOf returns the keys that were pressed. A sequence comes in one piece.
func keysOf(text string) (keys []string) {
next:
	for text != "" {
		for sequence, key := range sequences {
			if rest, ok := strings.CutPrefix(text, sequence); ok {
				keys, text = append(keys, key), rest
				continue next
			}
		}
		if text[0] == '\x1b' { // another sequence
			return keys
		}
		keys, text = append(keys, text[:1]), text[1:]
	}
	return keys
}

// draw shows the lines that page returns for the size of the terminal, if they or the size have changed. The line of titles is bold.
func (s *screen) draw(page func(width, height int) []string) error {
	width, height, err := term.GetSize(int(s.out.Fd()))
	if err != nil || width <= 0 || height <= 0 {
		width, height = 80, 24
	}
	var text strings.Builder
	text.WriteString(home)
	lines := page(width, height)
	for i, line := range lines {
		if strings.HasPrefix(line, "QUEUE ") {
			line = bold + line + plain
		}
		text.WriteString(line + clearLine)
		if i < len(lines)-1 {
			text.WriteString("\r\n")
		}
	}
	text.WriteString(clearBelow)
	if text.String() == s.shown && width == s.width && height == s.height {
		return nil
	}
	s.shown, s.width, s.height = text.String(), width, height
	_, err = io.WriteString(s.out, s.shown)
	return err
}
