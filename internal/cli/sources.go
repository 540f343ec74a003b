package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/queued/queued/client"
)

// SourcesCmd is about sources of webhooks.
type SourcesCmd struct {
	List       sourcesListCmd      `cmd:"" default:"withargs" help:"List sources; what \"queued sources\" does."`
	Get        sourceGetCmd        `cmd:"" help:"Show a source and what has come in from it."`
	Put        sourcePutCmd        `cmd:"" help:"Make a source, or replace its settings."`
	Deliveries sourceDeliveriesCmd `cmd:"" help:"List what has come in from a source lately."`
	Test       sourceTestCmd       `cmd:"" help:"Show what would become of a delivery. Nothing is stored."`
	Delete     sourceDeleteCmd     `cmd:"" help:"Delete a source: its deliveries are refused."`
}

type sourcesListCmd struct {
	server `embed:""`
}

// Help returns the text below the usage.
func (*sourcesListCmd) Help() string {
	return examples(`queued sources`, `queued sources -o jsonl | jq -r 'select(.rejected > 0) | .name'`)
}

// Run lists the sources.
func (c *sourcesListCmd) Run(ctx context.Context, env *Env) error {
	conn, err := c.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	return list(env, c.Output, sourcesView, conn.ListSources(ctx))
}

var sourcesView = view[client.Source]{
	columns: columns("NAME…", "KIND", "TO…", "RECEIVED", "DUPLICATES?", "REJECTED", "LAST RECEIVED@", "PAUSED"),
	row: func(s client.Source) []string {
		return []string{
			s.Name, s.Kind, sourceTarget(s), fmt.Sprint(s.Received), fmt.Sprint(s.Duplicates), fmt.Sprint(s.Rejected), dash(moment(s.LastReceivedAt)), dash(yes(s.Paused)),
		}
	},
	empty: "no sources",
}

// sourceTarget is where the events of a source go.
func sourceTarget(s client.Source) string {
	if s.Topic != "" {
		return "topic " + s.Topic
	}
	return s.Queue
}

// sourceArg is the source that a command is about.
type sourceArg struct {
	server `embed:""`
	Name   string `arg:"" source:"" help:"The name of the source."`
}

// call makes a call about the source and shows the source that it returns.
func (c *sourceArg) call(env *Env, send func(*client.Client) (client.Source, error)) error {
	return showAnswer(env, &c.server, sourceFields, send)
}

func sourceFields(s client.Source) [][2]string {
	fields := [][2]string{
		{"name", s.Name},
		{"kind", s.Kind},
		{"queue", s.Queue},
		{"topic", s.Topic},
		{"paused", yes(s.Paused)},
		{"type", s.Type},
		{"key", s.Key},
		{"event time", s.EventTS},
		{"priority", s.Priority},
		{"group", s.Group},
		{"token in", s.Header},
		{"secrets", strconv.Itoa(s.SecretCount)},
		{"remembers keys", span(s.DedupFor)},
		{"tolerance", span(s.Tolerance)},
		{"keeps bodies", span(s.KeepRaw)},
		{"keeps headers", strings.Join(s.Headers, ", ")},
		{"rate limit", rateText(s.RateLimit)},
		{"received", fmt.Sprint(s.Received)},
		{"duplicates", fmt.Sprint(s.Duplicates)},
		{"rejected", fmt.Sprint(s.Rejected)},
		{"last received@", moment(s.LastReceivedAt)},
	}
	if s.Signature != nil {
		fields = append(fields, [2]string{"signature in", s.Signature.Header})
	}
	if s.MaxBody > 0 {
		fields = append(fields, [2]string{"longest body", fmt.Sprintf("%d bytes", s.MaxBody)})
	}
	if r := s.LastRejected; r != nil {
		fields = append(fields, [2]string{"last rejected", fmt.Sprintf("%s, %s (request %s)", moment(r.At), r.Code, r.RequestID)})
	}
	if p := s.LastProblem; p != nil {
		fields = append(fields, [2]string{"last problem", fmt.Sprintf("%s, %s (request %s)", moment(p.At), p.Detail, p.RequestID)})
	}
	return append(fields, [2]string{"version", fmt.Sprint(s.Version)}, [2]string{"changed@", moment(s.UpdatedAt)})
}

// rateText formats a rate limit; nil is none.
func rateText(r *client.RateLimit) string {
	if r == nil {
		return ""
	}
	return strconv.FormatFloat(r.PerSecond, 'g', -1, 64) + " a second, " + strconv.Itoa(r.Burst) + " at once"
}

type sourceGetCmd struct {
	sourceArg `embed:""`
}

// Help returns the text below the usage.
func (*sourceGetCmd) Help() string {
	return examples(`queued sources get shop`, `queued sources get shop -o json | jq .last_rejected`) + "\nThe exit code is 3 if there is no such source."
}

// Run shows the source.
func (c *sourceGetCmd) Run(ctx context.Context, env *Env) error {
	return c.call(env, func(conn *client.Client) (client.Source, error) { return conn.GetSource(ctx, c.Name) })
}

type sourcePutCmd struct {
	sourceArg `embed:""`
	File      string `short:"f" placeholder:"FILE" default:"-" help:"The settings, a JSON object as the API takes it; standard input if it is \"-\" or not given."`
	IfAbsent  bool   `xor:"precondition" help:"Make a source, and fail if there is one of that name."`
	IfVersion int64  `xor:"precondition" placeholder:"N" min:"1" help:"Replace this version only, and fail if somebody has changed the source since."`
}

// Help returns the text below the usage.
func (*sourcePutCmd) Help() string {
	return examples(
		`queued sources put shop -f shop.json`,
		`jq -n '{kind: "github", queue: "in", secrets: [env.SECRET]}' | queued sources put github`,
	) + "\nThe settings are replaced as a whole, but secrets that are left out stay. Secrets are in the file, as others can see the arguments of a command."
}

// maxSettings is how long a file with settings, or a delivery to test, may be, in bytes: more than the server takes.
const maxSettings = 64 << 20

// Run puts the source.
func (c *sourcePutCmd) Run(ctx context.Context, env *Env) error {
	text, err := env.readAll(ctx, c.File, "the settings of the source, a JSON object")
	if err != nil {
		return err
	}
	var settings map[string]json.RawMessage
	if err := json.Unmarshal(text, &settings); err != nil {
		return usagef("the settings in %s are no JSON object: %s", fileName(c.File), err)
	}
	if settings == nil {
		return usagef("the settings in %s are no JSON object: they are null", fileName(c.File))
	}
	header := http.Header{}
	if c.IfVersion != 0 {
		header.Set("If-Match", strconv.Quote(strconv.FormatInt(c.IfVersion, 10)))
	}
	if c.IfAbsent {
		header.Set("If-None-Match", "*")
	}
	return c.call(env, func(conn *client.Client) (s client.Source, err error) {
		// As they are, so that the server can name the field that is wrong.
		_, err = conn.Do(ctx, client.Request{Method: http.MethodPut, Path: "/sources/" + url.PathEscape(c.Name), Header: header, Body: json.RawMessage(text)}, &s)
		return s, err
	})
}

// readAll reads a file whole; "-" is standard input.
func (e *Env) readAll(ctx context.Context, file, what string) ([]byte, error) {
	var input io.Reader
	if file != "-" {
		f, err := os.Open(file) //nolint:gosec // it is the user's own
		if err != nil {
			return nil, usagef("%s", err)
		}
		defer func() { _ = f.Close() }()
		input = f
	} else {
		if IsTerminal(e.Stdin) {
			e.notef("reading %s from the terminal; end it with Ctrl-D", what)
		}
		stdin := e.input(ctx)
		defer func() { _ = stdin.Close() }()
		input = stdin
	}
	text, err := io.ReadAll(io.LimitReader(input, maxSettings+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading %s: %w", fileName(file), err)
	case len(text) > maxSettings:
		return nil, usagef("%s has more than %d MiB", fileName(file), maxSettings>>20)
	}
	return text, nil
}

func fileName(file string) string {
	if file == "-" {
		return "standard input"
	}
	return file
}

type sourceTestCmd struct {
	sourceArg `embed:""`
	File      string   `short:"f" placeholder:"FILE" default:"-" help:"The body of the delivery; standard input if it is \"-\" or not given."`
	Header    []string `short:"H" sep:"none" placeholder:"'NAME: VALUE'" help:"A header field of the delivery; can be repeated."`
	Query     string   `placeholder:"QUERY" help:"The query of the URL of the delivery, such as shop=7."`
	At        string   `placeholder:"TIME" help:"When the delivery came in: a time, or how long ago, such as 90m; now if it is not given."`
}

// Help returns the text below the usage.
func (*sourceTestCmd) Help() string {
	return examples(
		`queued sources test shop -f delivery.json -H "Authorization: Bearer $TOKEN"`,
		`queued sources test github -f push.json -H 'X-GitHub-Event: push' -H 'X-Hub-Signature-256: sha256=…' -o json | jq .mapped`,
	) + "\nThe exit code is 1 if the delivery would be refused."
}

// Run tests the delivery.
func (c *sourceTestCmd) Run(ctx context.Context, env *Env) error {
	headers, err := parseHeaders(c.Header)
	if err != nil {
		return err
	}
	at, err := parseTime("at", c.At, env.Now())
	if err != nil {
		return err
	}
	body, err := env.readAll(ctx, c.File, "the body of the delivery")
	if err != nil {
		return err
	}
	conn, err := c.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	tried, err := conn.TestSource(ctx, c.Name, client.TrialDelivery{Headers: headers, Body: string(body), Query: c.Query, At: at})
	if err != nil {
		return err
	}
	if err := show(env, c.Output, tried, triedFields); err != nil {
		return err
	}
	if tried.Rejected != nil {
		return errors.New("the delivery would be refused: " + tried.Rejected.Code)
	}
	return nil
}

// parseHeaders returns the header fields that flags say, nil if there are none.
func parseHeaders(lines []string) (map[string]string, error) {
	var headers map[string]string
	for _, line := range lines {
		name, value, has := strings.Cut(line, ":")
		if name = strings.TrimSpace(name); !has || name == "" {
			return nil, usagef("--header is %q; want a name, a colon and a value", line)
		}
		if headers == nil {
			headers = make(map[string]string)
		}
		headers[name] = strings.TrimSpace(value)
	}
	return headers, nil
}

func triedFields(d client.TriedDelivery) [][2]string {
	verified := "no"
	if d.Verified {
		verified = "yes"
	}
	fields := [][2]string{{"verified", verified}}
	if d.Rejected != nil {
		fields = append(fields, [2]string{"refused", d.Rejected.Code}, [2]string{"because", d.Rejected.Detail})
	}
	fields = append(fields, [2]string{"challenge", d.Challenge})
	events := d.Batch
	if d.Mapped != nil {
		events = append(events, *d.Mapped)
	}
	for _, e := range events {
		at := ""
		if !e.EventTS.IsZero() {
			at = e.EventTS.UTC().Format(time.RFC3339Nano)
		}
		fields = append(fields, [][2]string{
			{"type", e.Type},
			{"key", e.Key},
			{"event time", at},
			{"priority", strconv.Itoa(e.Priority)},
			{"group", e.Group},
			{"meta", string(e.Meta)},
			{"problems", strings.Join(e.Problems, "; ")},
			{"event", string(e.Event)},
		}...)
	}
	return fields
}

type sourceDeleteCmd struct {
	sourceArg `embed:""`
	assent    `embed:""`
}

// Help returns the text below the usage.
func (*sourceDeleteCmd) Help() string {
	return examples(`queued sources delete shop --yes`) + "\nIts secrets are forgotten, and further deliveries get 404. Its events stay."
}

// Run deletes the source, once somebody has agreed.
func (c *sourceDeleteCmd) Run(ctx context.Context, env *Env) error {
	if err := c.confirm(ctx, env, "Delete the source "+strconv.Quote(c.Name)+" and forget its secrets?"); err != nil {
		return err
	}
	conn, err := c.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	return conn.DeleteSource(ctx, c.Name, 0)
}
