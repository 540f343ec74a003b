package cli

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/term"

	"github.com/queued/queued/client"
)

// ContextCmd is about contexts: servers under a name, with the key and certificates for each.
type ContextCmd struct {
	List   contextListCmd   `cmd:"" default:"withargs" help:"List contexts; what \"queued context\" does."`
	Use    contextUseCmd    `cmd:"" help:"Make a context the one that commands use, or none."`
	Set    contextSetCmd    `cmd:"" help:"Make a context, or change what the flags name."`
	Show   contextShowCmd   `cmd:"" help:"Show a context; the current one unless it is named."`
	Delete contextDeleteCmd `cmd:"" help:"Delete a context."`
}

// clientConfig is that of package client with its time limits.
var clientConfig = client.Config{}

// shownContext is a context as it is shown.
type shownContext struct {
	Name      string `json:"name"`
	Current   bool   `json:"current"`
	URL       string `json:"url"`
	Key       string `json:"key,omitempty"` // only if it was asked for
	HasKey    bool   `json:"has_key"`
	KeyFile   string `json:"key_file,omitempty"`
	CACert    string `json:"cacert,omitempty"`
	Cert      string `json:"cert,omitempty"`
	ClientKey string `json:"client_key,omitempty"`
}

func (f *contextFile) shown(name string, withKey bool) shownContext {
	c := f.Contexts[name]
	s := shownContext{
		Name: name, Current: name == f.Current, URL: c.URL, HasKey: c.Key != "", KeyFile: c.KeyFile, CACert: c.CACert, Cert: c.Cert, ClientKey: c.ClientKey,
	}
	if withKey {
		s.Key = c.Key
	}
	return s
}

// key says which key a context has.
func (s shownContext) key() string {
	switch {
	case s.Key != "":
		return s.Key
	case s.HasKey:
		return "set; --show-key shows it"
	case s.KeyFile != "":
		return "in " + s.KeyFile
	}
	return ""
}

type contextListCmd struct {
	output `embed:""`
}

// Help returns the text below the usage.
func (*contextListCmd) Help() string {
	return examples(`queued context`, `queued context list -o json`)
}

// Run lists the contexts.
func (c *contextListCmd) Run(env *Env) error {
	file, err := readContexts(env)
	if err != nil {
		return err
	}
	var shown []shownContext
	for _, name := range file.names() {
		shown = append(shown, file.shown(name, false))
	}
	return list(env, c.Output, contextsView, all(shown))
}

var contextsView = view[shownContext]{
	columns: columns("CURRENT", "NAME", "URL…", "KEY…", "CERTIFICATES?"),
	row: func(s shownContext) []string {
		current, key, certificates := "", "", []string(nil)
		if s.Current {
			current = "*"
		}
		if s.HasKey {
			key = "set"
		} else if s.KeyFile != "" {
			key = "in " + s.KeyFile
		}
		if s.CACert != "" {
			certificates = append(certificates, "cacert")
		}
		if s.Cert != "" {
			certificates = append(certificates, "cert")
		}
		return []string{current, s.Name, s.URL, dash(key), dash(strings.Join(certificates, ", "))}
	},
	empty: "no contexts yet; \"queued context set NAME --url URL\" makes one",
}

const noCurrent = "no context is the current one now: commands talk to the server of --url or $QUEUED_URL, or to the one on this machine"

type contextUseCmd struct {
	Name string `arg:"" optional:"" context:"" help:"The name of the context."`
	None bool   `help:"Use no context: commands talk to the server of --url or $QUEUED_URL, or to the one on this machine."`
}

// Help returns the text below the usage.
func (*contextUseCmd) Help() string {
	return examples(`queued context use production`, `queued context use --none`)
}

// Run makes the context the current one.
func (c *contextUseCmd) Run(env *Env) error {
	if (c.Name == "") != c.None {
		return usagef("context use needs the name of a context, or --none")
	}
	file, err := readContexts(env)
	if err != nil {
		return err
	}
	if !c.None {
		if _, err := file.get(c.Name); err != nil {
			return err
		}
	}
	file.Current = c.Name
	if err := file.write(); err != nil {
		return err
	}
	if c.None {
		env.notef("%s", noCurrent)
	} else {
		env.notef("commands talk to %s now, unless --url, $QUEUED_URL, --context or $QUEUED_CONTEXT says otherwise", file.Contexts[c.Name].URL)
	}
	return nil
}

type contextSetCmd struct {
	Name      string  `arg:"" context:"" help:"The name of the context."`
	URL       *string `placeholder:"URL" help:"The server, such as https://queued.example."`
	Key       *string `placeholder:"KEY" help:"The API key, which the file keeps; - reads it from standard input. Other users of the machine can see flags. An empty one removes the key."`
	KeyFile   *string `placeholder:"FILE" help:"A file that holds the API key; it is read by each command. An empty one removes it."`
	CACert    *string `name:"cacert" placeholder:"FILE" help:"A file with certificates of authorities in PEM, which the server's certificate has to be signed by. An empty one removes it."`
	Cert      *string `placeholder:"FILE" help:"A file with the certificate that proves to the server who calls, in PEM. An empty one removes it."`
	ClientKey *string `placeholder:"FILE" help:"A file with the private key of --cert in PEM. An empty one removes it."`
	Use       bool    `help:"Make it the current context. The first context is that anyway."`
}

// Help returns the text below the usage.
func (*contextSetCmd) Help() string {
	return examples(
		`queued context set production --url https://queued.example --key-file ~/.queued-key --use`,
		`queued context set staging --url https://staging.example --key -`,
		`queued context set production --cacert ca.pem --cert me.pem --client-key me.key`,
	) + "\nWhat no flag names stays as it is. Only the owner of the file of contexts can read it: $XDG_CONFIG_HOME/queued/contexts.json, or ~/.config/queued/contexts.json."
}

// Run makes or changes the context.
func (c *contextSetCmd) Run(ctx context.Context, env *Env) error {
	file, err := readContexts(env)
	if err != nil {
		return err
	}
	saved, isKnown := file.Contexts[c.Name]
	if isKnown && c.URL == nil && c.Key == nil && c.KeyFile == nil && c.CACert == nil && c.Cert == nil && c.ClientKey == nil && !c.Use {
		return usagef("context set needs something to change, such as --url")
	}
	if c.Key != nil && *c.Key == "-" {
		key, err := readSecret(ctx, env, "API key: ")
		if err != nil {
			return err
		}
		c.Key = &key
	}
	set(&saved.URL, c.URL)
	if c.Key != nil && *c.Key != "" && c.KeyFile == nil {
		saved.KeyFile = ""
	}
	if c.KeyFile != nil && *c.KeyFile != "" && c.Key == nil {
		saved.Key = ""
	}
	set(&saved.Key, c.Key)
	for _, path := range []struct{ target, flag *string }{
		{&saved.KeyFile, c.KeyFile}, {&saved.CACert, c.CACert}, {&saved.Cert, c.Cert}, {&saved.ClientKey, c.ClientKey},
	} {
		if path.flag == nil {
			continue
		}
		if *path.target = *path.flag; *path.flag != "" {
			if *path.target, err = filepath.Abs(*path.flag); err != nil { // commands are run in other directories
				return err
			}
		}
	}
	if err := checkContext(c.Name, saved); err != nil {
		return usagef("%s", err)
	}
	a := address{URL: saved.URL, CACert: saved.CACert, Cert: saved.Cert, ClientKey: saved.ClientKey}
	if _, err := a.tlsConfig(); err != nil {
		return err
	}
	if saved.KeyFile != "" {
		if _, err := readKey(saved.KeyFile); err != nil {
			return usagef("--key-file: %s", err)
		}
	}
	if c.Use || len(file.Contexts) == 0 {
		file.Current = c.Name
	}
	file.Contexts[c.Name] = saved
	if err := file.write(); err != nil {
		return err
	}
	env.notef("saved the context %s in %s", c.Name, file.path)
	if file.Current != c.Name {
		env.notef("commands use it with --context %s, or after \"queued context use %s\"", c.Name, c.Name)
	}
	return nil
}

// maxSecret is the longest secret that is read, in bytes.
const maxSecret = 64 << 10

// readSecret reads a line from standard input; from a terminal without showing it.
func readSecret(ctx context.Context, env *Env, prompt string) (string, error) {
	if file, ok := env.Stdin.(*os.File); ok && IsTerminal(file) {
		_, _ = io.WriteString(env.Stderr, prompt)
		text, err := readPassword(ctx, int(file.Fd()))
		_, _ = io.WriteString(env.Stderr, "\n")
		return strings.TrimSpace(text), err
	}
	input := env.input(ctx)
	defer func() { _ = input.Close() }()
	line, err := bufio.NewReader(io.LimitReader(input, maxSecret)).ReadString('\n')
	if err != nil && err != io.EOF {
		return "", err
	}
	if line = strings.TrimSpace(line); line == "" {
		return "", usagef("--key -: standard input has no key")
	}
	return line, nil
}

// readPassword reads a line from a terminal without showing it, until ctx ends: then the terminal shows again what is typed.
func readPassword(ctx context.Context, terminal int) (string, error) {
	before, err := term.GetState(terminal)
	if err != nil {
		return "", err
	}
	type answer struct {
		text []byte
		err  error
	}
	answers := make(chan answer, 1)
	go func() {
		text, err := term.ReadPassword(terminal)
		answers <- answer{text, err}
	}()
	select {
	case a := <-answers:
		return string(a.text), a.err
	case <-ctx.Done():
		_ = term.Restore(terminal, before)
		return "", ctx.Err()
	}
}

type contextShowCmd struct {
	output  `embed:""`
	Name    string `arg:"" optional:"" context:"" help:"The name of the context."`
	ShowKey bool   `help:"Show the key, too."`
}

// Help returns the text below the usage.
func (*contextShowCmd) Help() string {
	return examples(`queued context show`, `queued context show production --show-key -o jsonl | jq -r .key`)
}

// Run shows the context.
func (c *contextShowCmd) Run(env *Env) error {
	file, err := readContexts(env)
	if err != nil {
		return err
	}
	name := c.Name
	if name == "" {
		if name = file.Current; name == "" {
			return usagef("no context is the current one; \"queued context use NAME\" makes one that")
		}
	}
	if _, err := file.get(name); err != nil {
		return err
	}
	return show(env, c.Output, file.shown(name, c.ShowKey), func(s shownContext) [][2]string {
		return [][2]string{
			{"name", s.Name},
			{"current", fmt.Sprint(s.Current)},
			{"url", s.URL},
			{"key", s.key()},
			{"cacert", s.CACert},
			{"cert", s.Cert},
			{"client key", s.ClientKey},
		}
	})
}

type contextDeleteCmd struct {
	Name string `arg:"" context:"" help:"The name of the context."`
}

// Help returns the text below the usage.
func (*contextDeleteCmd) Help() string { return examples(`queued context delete staging`) }

// Run deletes the context.
func (c *contextDeleteCmd) Run(env *Env) (err error) {
	file, err := readContexts(env)
	if err != nil {
		return err
	}
	if _, err := file.get(c.Name); err != nil {
		return err
	}
	delete(file.Contexts, c.Name)
	if file.Current == c.Name {
		file.Current = ""
		defer func() {
			if err == nil {
				env.notef("%s", noCurrent)
			}
		}()
	}
	return file.write()
}
