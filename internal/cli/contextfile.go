package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// A savedContext is a server with the key and certificates for it, as the file of contexts has them.
type savedContext struct {
	URL       string `json:"url"`
	Key       string `json:"key,omitempty"`
	KeyFile   string `json:"key_file,omitempty"`
	CACert    string `json:"cacert,omitempty"`
	Cert      string `json:"cert,omitempty"`
	ClientKey string `json:"client_key,omitempty"`
}

// contextFile is the file of contexts.
type contextFile struct {
	// Current is the context that commands use unless they are told another server; empty: none.
	Current  string                  `json:"current,omitempty"`
	Contexts map[string]savedContext `json:"contexts"`

	path string
}

// contextName matches the names of contexts.
var contextName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// maxContextFile is the largest file of contexts, in bytes: room for thousands.
const maxContextFile = 1 << 20

// variable returns a variable of the environment; empty: it is not set.
func (e *Env) variable(name string) string {
	for _, entry := range slices.Backward(e.Environ) {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value
		}
	}
	return ""
}

// contextPath returns where the file of contexts is: in $XDG_CONFIG_HOME, else in ~/.config, on Windows in %AppData%. It is empty if none of them is known.
func (e *Env) contextPath() string {
	dir := e.variable("XDG_CONFIG_HOME")
	if !filepath.IsAbs(dir) { // as the specification says
		dir = ""
	}
	if runtime.GOOS == "windows" && dir == "" {
		dir = e.variable("AppData")
	}
	if home := e.variable("HOME"); dir == "" && home != "" {
		dir = filepath.Join(home, ".config")
	}
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, "queued", "contexts.json")
}

// readContexts returns the file of contexts; without contexts if there is no file.
func readContexts(env *Env) (*contextFile, error) {
	file := &contextFile{Contexts: make(map[string]savedContext), path: env.contextPath()}
	if file.path == "" {
		return file, nil
	}
	opened, err := os.Open(file.path)
	if errors.Is(err, fs.ErrNotExist) {
		return file, nil
	}
	if err != nil {
		return nil, usagef("the file of contexts: %s", err)
	}
	defer func() { _ = opened.Close() }()
	text, err := io.ReadAll(io.LimitReader(opened, maxContextFile+1))
	if err == nil && len(text) > maxContextFile {
		err = fmt.Errorf("it has more than %d bytes", maxContextFile)
	}
	if err == nil {
		decoder := json.NewDecoder(bytes.NewReader(text))
		decoder.DisallowUnknownFields()
		if err = decoder.Decode(file); err == nil && decoder.More() {
			err = errors.New("there is something after the object")
		}
	}
	if err != nil {
		return nil, usagef("the file of contexts, %s, cannot be read: %s; correct it, or remove it and use \"queued context set\"", file.path, strings.TrimPrefix(err.Error(), "json: "))
	}
	if file.Contexts == nil {
		file.Contexts = make(map[string]savedContext)
	}
	for name, saved := range file.Contexts {
		if err := checkContext(name, saved); err != nil {
			return nil, usagef("the file of contexts, %s: the context %q: %s", file.path, name, err)
		}
	}
	if info, err := opened.Stat(); err == nil && runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0 && file.hasKeys() {
		return nil, usagef("other users of the machine may open the file of contexts, which has keys: chmod 600 %s", file.path)
	}
	return file, nil
}

func (f *contextFile) hasKeys() bool {
	for _, saved := range f.Contexts {
		if saved.Key != "" {
			return true
		}
	}
	return false
}

// checkContext returns the error of an invalid context.
func checkContext(name string, c savedContext) error {
	a := address{URL: c.URL, Key: c.Key}
	switch {
	case !contextName.MatchString(name):
		return errors.New("the name must be 1 to 64 of A–Z a–z 0–9 . _ -, with a letter or digit first")
	case c.URL == "":
		return errors.New("the context has no URL; want --url, such as https://queued.example")
	case c.Key != "" && c.KeyFile != "":
		return errors.New("the context has a key and a file of a key; want one of them")
	case strings.ContainsFunc(c.Key, func(r rune) bool { return r <= ' ' || r > '~' }):
		return errors.New("the key must be visible ASCII characters without spaces")
	case (c.Cert == "") != (c.ClientKey == ""):
		return errors.New("--cert and --client-key go together")
	case c.CACert+c.Cert != "" && !strings.HasPrefix(strings.ToLower(c.URL), "https:"):
		return errors.New("--cacert, --cert and --client-key are for https; want a URL with https")
	}
	_, err := a.connect(clientConfig, patience{})
	return err
}

// write replaces the file, which only its owner may read.
func (f *contextFile) write() error {
	if f.path == "" {
		return usagef("there is no place for a file of contexts: set HOME or XDG_CONFIG_HOME")
	}
	text, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(f.path), 0o700); err != nil {
		return err
	}
	path := f.path
	if target, err := filepath.EvalSymlinks(path); err == nil { // a file that is linked to stays where it is
		path = target
	}
	temporary, err := os.CreateTemp(filepath.Dir(path), ".contexts-*") // with mode 0600
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(temporary.Name()) }()
	_, err = temporary.Write(append(text, '\n'))
	if err = errors.Join(err, temporary.Sync(), temporary.Close()); err != nil {
		return err
	}
	return os.Rename(temporary.Name(), path)
}

// get returns a context by its name.
func (f *contextFile) get(name string) (savedContext, error) {
	saved, ok := f.Contexts[name]
	if ok {
		return saved, nil
	}
	names := f.names()
	if right := nearest(name, names); right != name {
		return saved, usagef("there is no context %q; did you mean %q?", name, right)
	}
	if len(names) == 0 {
		return saved, usagef("there is no context %q, nor any other: \"queued context set %s --url URL\" makes it", name, name)
	}
	return saved, usagef("there is no context %q; there are %s", name, strings.Join(names, ", "))
}

func (f *contextFile) names() []string { return slices.Sorted(maps.Keys(f.Contexts)) }

// UseContext sets the server of a command, and the key and certificates for it, from a context. Of two settings the one comes first that is a flag;
// then the one that is a variable; then that of the context. --context is a flag like --url: the variables do not count beside it. A context is
// not used at all when a flag or a variable names another server, so that no key goes to a server that it is not for. given returns the flag or
// the variable by which the user has given a setting; empty: none.
func UseContext(command *kong.Context, env *Env, given func(flag string) string) error {
	targets := map[string]*kong.Flag{}
	for _, flag := range command.Flags() {
		targets[flag.Name] = flag
	}
	if targets["context"] == nil || targets["key-file"] == nil {
		return nil
	}
	byFlag := func(name string) bool { return strings.HasPrefix(given(name), "--") }
	name := targets["context"].Target.String()
	switch url := given("url"); {
	case byFlag("context") && byFlag("url"):
		return usagef("--context and --url both say which server; want one of them")
	case byFlag("context"):
		for _, setting := range connectionFlags {
			if !byFlag(setting) {
				targets[setting].Target.SetZero()
			}
		}
	case url != "" && given("context") != "" && !byFlag("url"):
		return usagef("%s and %s both say which server; unset one of them, or pass --context or --url", given("context"), url)
	case url != "":
		env.serverFrom = url
		return nil
	}
	file, err := readContexts(env)
	if err != nil {
		return err
	}
	if name == "" {
		if name = file.Current; name == "" {
			return nil
		}
	}
	saved, err := file.get(name)
	if err != nil {
		return err
	}
	env.serverFrom = "context " + name
	targets["url"].Target.SetString(saved.URL)
	isUnset := func(settings ...string) bool {
		return !slices.ContainsFunc(settings, func(setting string) bool { return !targets[setting].Target.IsZero() })
	}
	if isUnset("key", "key-file") {
		env.keyFrom = name
		targets["key"].Target.SetString(saved.Key)
		if saved.KeyFile != "" {
			key, err := readKey(saved.KeyFile)
			if err != nil {
				return usagef("the file of the key of the context %s: %s", name, err)
			}
			targets["key"].Target.SetString(key)
		}
	}
	if isUnset("cacert") {
		targets["cacert"].Target.SetString(saved.CACert)
	}
	if isUnset("cert", "client-key") {
		targets["cert"].Target.SetString(saved.Cert)
		targets["client-key"].Target.SetString(saved.ClientKey)
	}
	return nil
}

// CurrentContext returns the name of the context that a command uses which is told of no server; empty: there is none.
func CurrentContext(env *Env) (string, error) {
	file, err := readContexts(env)
	if err != nil {
		return "", err
	}
	return file.Current, nil
}

// connectionFlags are the settings that a context has.
var connectionFlags = []string{"url", "key", "key-file", "cacert", "cert", "client-key"}

// maxKeyFile is the largest file of a key, in bytes.
const maxKeyFile = 64 << 10

// readKey returns the key that a file has.
func readKey(path string) (string, error) {
	file, err := os.Open(path) //nolint:gosec // the user names the file
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }()
	text, err := io.ReadAll(io.LimitReader(file, maxKeyFile))
	if err != nil {
		return "", err
	}
	key := strings.TrimSpace(string(text))
	if key == "" || strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fmt.Errorf("%s has no key; want visible ASCII characters on one line", path)
	}
	return key, nil
}
