//go:build unix

package embedded

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
)

const (
	databaseName = "queued"
	userRole     = "queued" // the cluster's superuser
	socketPort   = "5432"   // part of the socket's name; no port is opened
	// maxSocketPath is the length that a socket's path can have on every system: sockaddr_un has room for 108 bytes on Linux and for
	// 104 on macOS, one of them for the final NUL.
	maxSocketPath = 103
)

// defaultSettings are the settings that Config.Settings may replace. Those that are PostgreSQL's defaults are set here so that neither
// postgresql.conf nor ALTER SYSTEM can change them.
func defaultSettings() map[string]string {
	return map[string]string{
		"fsync":              "on",
		"synchronous_commit": "on",
		"full_page_writes":   "on",

		"shared_buffers":           "128MB",
		"max_connections":          "100",
		"autovacuum":               "on",
		"jit":                      "off", // compiling costs more than the short statements of a queue
		"shared_preload_libraries": "",
		"cluster_name":             "queued",

		"timezone":          "UTC",
		"log_timezone":      "UTC",
		"logging_collector": "off", // the log is postgres.log
		"log_destination":   "stderr",
		"log_checkpoints":   "off",
		// Statements and details of errors would write payloads into the log.
		"log_min_error_statement": "panic",
		"log_error_verbosity":     "terse",
	}
}

// reservedSettings decide where the server's files are and who can reach it.
func reservedSettings(dir dataDir, socket socketDir) map[string]string {
	return map[string]string{
		"listen_addresses":        "",
		"port":                    socketPort,
		"unix_socket_directories": `"` + strings.ReplaceAll(string(socket), `"`, `""`) + `"`,
		"unix_socket_permissions": "0700",
		"unix_socket_group":       "",
		"hba_file":                dir.file("pg_hba.conf"),
		"ident_file":              dir.file("pg_ident.conf"),
		"data_directory":          dir.pg(),
	}
}

// settingArguments returns the default settings, those of a Config and the reserved ones as arguments of postgres, which override every
// file and ALTER SYSTEM.
func settingArguments(extra map[string]string, dir dataDir, socket socketDir) []string {
	settings := defaultSettings()
	maps.Copy(settings, extra)
	maps.Copy(settings, reservedSettings(dir, socket))
	var args []string
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", name+"="+settings[name])
	}
	return args
}

// writeAccessRules lets the user of this process in without a password: the kernel tells the server who connects (peer
// authentication). Roles that an operator adds need a password.
func (d dataDir) writeAccessRules(ctx context.Context) error {
	name, err := ownName(ctx)
	if err != nil {
		return err
	}
	const header = "# Written at every start of queued.\n"
	hba := header +
		"local all         " + userRole + " peer map=queued\n" +
		"local replication " + userRole + " peer map=queued\n" +
		"local all         all    scram-sha-256\n"
	ident := header + "queued \"" + name + "\" " + userRole + "\n"
	if err := errors.Join(d.write("pg_hba.conf", hba), d.write("pg_ident.conf", ident)); err != nil {
		return fmt.Errorf("write the access rules: %w", err)
	}
	return nil
}

// socketDir is the directory of the server's socket. Only the server's account and root can enter it.
type socketDir string

func (s socketDir) socket() string { return filepath.Join(string(s), ".s.PGSQL."+socketPort) }

// isUsable reports whether the path is short enough for a socket, and not taken for a list of hosts.
func (s socketDir) isUsable() bool {
	return len(s.socket()) <= maxSocketPath && !strings.Contains(string(s), ",")
}

func (s socketDir) url(database string) string {
	query := url.Values{"host": {string(s)}, "port": {socketPort}, "sslmode": {"disable"}}.Encode()
	u := url.URL{
		Scheme:   "postgres",
		User:     url.User(userRole),
		Path:     "/" + database,
		RawQuery: strings.ReplaceAll(query, "+", "%20"), // libpq does not read "+" as a space
	}
	return u.String()
}
