package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/queued/queued/client"
)

// UsageError is a wrong command line.
type UsageError struct{ text string }

func (e *UsageError) Error() string { return e.text }

func usagef(format string, args ...any) error { return &UsageError{fmt.Sprintf(format, args...)} }

// errNothing is the error of a claim that got no event.
var errNothing = errors.New("nothing to claim")

// reportedError is an error whose text was written already.
type reportedError struct{ error }

func (e *reportedError) Unwrap() error { return e.error }

// ExitCode returns the exit code for the error of a command: 0 for nil, 1 for a failure, 2 for a wrong command line, 3 when there is no
// such event, queue, schedule, source or push, nothing to claim, or an event that was waited for has not ended, 4 when the lease is lost.
func ExitCode(err error) int {
	switch {
	case err == nil:
		return 0
	case errors.As(err, new(*UsageError)):
		return exitUsage
	case errors.Is(err, client.ErrLeaseLost):
		return exitLeaseLost
	case errors.Is(err, client.ErrQueueNotDeclared), isPathNotFound(err): // of a claim, too: it must not look as if there was nothing to claim
		return exitFailure
	case errors.Is(err, errNothing), errors.Is(err, client.ErrNotFound), errors.As(err, new(*notEndedError)), errors.As(err, new(*unknownQueueError)):
		return exitNothing
	}
	return exitFailure
}

// codePathNotFound is the code of a server's answer to a path that it does not have.
const codePathNotFound = "not_found"

func isPathNotFound(err error) bool {
	answer, ok := errors.AsType[*client.Error](err)
	return ok && answer.Code == codePathNotFound
}

// Describe returns the message about the error of a command, empty if it was written already. A server's error about a field of the
// request names the flag or argument that is called so, if inputs have one.
func (e *Env) Describe(err error, inputs []string) string {
	if errors.As(err, new(*reportedError)) {
		return ""
	}
	if answer, ok := errors.AsType[*client.Error](err); ok {
		return PrintableLines(strings.TrimSuffix(err.Error(), answer.Error()) + e.describeAnswer(answer, inputs))
	}
	if unreached, ok := errors.AsType[*url.Error](err); ok {
		if errors.Is(err, context.DeadlineExceeded) {
			return PrintableLines(fmt.Sprintf("no answer from the server %s (%s) in the time of --timeout", serverOf(unreached.URL), e.origin()))
		}
		text := fmt.Sprintf("%sno answer from the server %s (%s): %s", strings.TrimSuffix(err.Error(), unreached.Error()), serverOf(unreached.URL), e.origin(), unreached.Err)
		if advice := cmp.Or(adviceOnTLS(err), adviceOnAbsence(err, unreached.URL)); advice != "" {
			text += "\n  " + advice
		}
		return PrintableLines(text)
	}
	return PrintableLines(strings.TrimPrefix(err.Error(), "client: "))
}

// adviceOnAbsence returns advice about a server on this machine that does not run; empty: it is not about that.
func adviceOnAbsence(err error, server string) string {
	if !isRefusedHere(err) {
		return ""
	}
	start := "queued serve"
	if u, err := url.Parse(server); err == nil && u.Scheme == "http" && u.Host != "127.0.0.1:8080" && u.Host != "localhost:8080" { // where it serves unless it is told otherwise
		start += " --listen " + net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "80"))
	}
	return fmt.Sprintf("no server runs there: %q starts one, --url or $QUEUED_URL names another; with --retry-for 1m a command waits for one", start)
}

// serverOf returns the server of a URL, without the path.
func serverOf(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		return text
	}
	return u.Scheme + "://" + u.Host
}

// describeAnswer describes a response that refuses a call.
func (e *Env) describeAnswer(answer *client.Error, inputs []string) string {
	var text strings.Builder
	text.WriteString(answer.Title)
	switch {
	case errors.Is(answer, client.ErrQueueNotDeclared) && answer.Detail != "": // it names the queue, and another one that may have been meant
		text.WriteString(": " + answer.Detail)
	case len(answer.Errors) == 1:
		text.WriteString(": " + inputOf(answer.Errors[0].Pointer, inputs) + ": " + answer.Errors[0].Detail)
	case len(answer.Errors) > 1: // which the detail has, too
		for _, field := range answer.Errors {
			text.WriteString("\n  " + inputOf(field.Pointer, inputs) + ": " + field.Detail)
		}
	case answer.Detail != "":
		text.WriteString(": " + answer.Detail)
	}
	switch {
	case answer.Code == "client_certificate_required":
		text.WriteString("\n  --cert and --client-key ($QUEUED_CERT, $QUEUED_CLIENT_KEY) name the files of the certificate and its key.")
	case errors.Is(answer, client.ErrUnauthorized) && e.keyFrom != "":
		fmt.Fprintf(&text, "\n  The API key is that of the context %s: \"queued context set %s --key -\" sets another one.", e.keyFrom, e.keyFrom)
	case errors.Is(answer, client.ErrUnauthorized):
		text.WriteString("\n  The API key is --key, --key-file or $QUEUED_KEY.")
	case answer.Code == codePathNotFound:
		fmt.Fprintf(&text, "\n  It was %s %s: is the URL (%s) that of the server, and the server as new as this program?", answer.Method, answer.Path, e.origin())
	}
	if answer.Status >= 500 && answer.RequestID != "" {
		fmt.Fprintf(&text, " (status %d, request %s)", answer.Status, answer.RequestID)
	}
	return text.String()
}

var missingValue = regexp.MustCompile(`^(--[\w-]+): expected [\w ]+ value but got "(.*?)" \(`)

// DescribeParseError returns the text of an error about a command line: a flag without a value is said to need one, and of flags of one letter none is said to be similar.
func DescribeParseError(text string, command *kong.Context) string {
	if found := missingValue.FindStringSubmatch(text); found != nil {
		isFlag := func(word string) bool {
			return slices.ContainsFunc(command.Flags(), func(f *kong.Flag) bool { return word == "--"+f.Name || f.Short != 0 && word == "-"+string(f.Short) })
		}
		if at := slices.IndexFunc(command.Flags(), func(f *kong.Flag) bool { return found[1] == "--"+f.Name }); at >= 0 && (found[2] == "EOL" || isFlag(found[2])) {
			flag := command.Flags()[at]
			if choices := choicesOf(flag.Value); len(choices) > 0 {
				return found[1] + " needs a value: " + oneOf(choices)
			}
			return found[1] + " needs a value: " + found[1] + " " + cmp.Or(flag.PlaceHolder, strings.ToUpper(flag.Name))
		}
	}
	if strings.HasPrefix(text, "unknown flag -") && !strings.HasPrefix(text, "unknown flag --") {
		text, _, _ = strings.Cut(text, ", did you mean")
	}
	return text
}

// oneOf returns choices as a sentence has them.
func oneOf(choices []string) string {
	last := len(choices) - 1
	if last == 0 {
		return choices[0]
	}
	return strings.Join(choices[:last], ", ") + " or " + choices[last]
}

// flagNames are the flags that have another name than their fields.
var flagNames = map[string]string{"invisible-for": "lease", "scopes": "scope", "queues": "queue", "topics": "topic"}

// InputsOf returns the flags and the arguments of a command, as its help writes them: "--type", "<to>".
func InputsOf(command *kong.Context) (inputs []string) {
	for _, flag := range command.Flags() {
		inputs = append(inputs, "--"+flag.Name)
	}
	if node := command.Selected(); node != nil {
		for _, arg := range node.Positional {
			inputs = append(inputs, "<"+arg.Name+">")
		}
	}
	return inputs
}

// inputOf returns the flag or argument that is called as the field at a pointer, or the pointer.
func inputOf(pointer string, inputs []string) string {
	name := strings.ReplaceAll(pointer[strings.LastIndexAny(pointer, "/?{#")+1:], "_", "-")
	name = strings.TrimSuffix(name, "}")
	for _, input := range []string{"--" + name, "--" + flagNames[name], "<" + name + ">"} {
		if slices.Contains(inputs, input) {
			return input
		}
	}
	if strings.HasPrefix(pointer, "{") { // of the path, which the first argument is in
		if first := slices.IndexFunc(inputs, func(input string) bool { return strings.HasPrefix(input, "<") }); first >= 0 {
			return inputs[first]
		}
	}
	return pointer
}

// PrintableLines is [Printable], but leaves line breaks.
func PrintableLines(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = printable(line)
	}
	return strings.Join(lines, "\n")
}
