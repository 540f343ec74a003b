package embedded

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// defaults are the settings of every server that Config.Settings may replace. What is missing
// is left to PostgreSQL. Those that protect the data are spelled out although they are its
// defaults, so that nobody's postgresql.conf or ALTER SYSTEM can weaken them.
func defaults() map[string]string {
	return map[string]string{
		"fsync":              "on",
		"synchronous_commit": "on",
		"full_page_writes":   "on",

		"shared_buffers":           "128MB",
		"max_connections":          "100",
		"autovacuum":               "on",
		"jit":                      "off", // compiling costs more than the short statements of a queue
		"shared_preload_libraries": "",    // a plain PostgreSQL, whatever is installed beside it
		"cluster_name":             "queued",

		"timezone":          "UTC",
		"log_timezone":      "UTC",
		"logging_collector": "off", // the log is postgres.log
		"log_destination":   "stderr",
		"log_checkpoints":   "off",
		// Errors are the client's to report. With their statements and details they would carry
		// payloads into a file that nobody thinks of as data.
		"log_min_error_statement": "panic",
		"log_error_verbosity":     "terse",
	}
}

// reserved are the settings that decide where the server lives and who can reach it.
func reserved(dir dataDir, socket socketDir) map[string]string {
	return map[string]string{
		"listen_addresses":        "",
		"port":                    socketPort,
		"unix_socket_directories": `"` + strings.ReplaceAll(string(socket), `"`, `""`) + `"`,
		"unix_socket_permissions": "0700",
		"unix_socket_group":       "",
		"hba_file":                dir.hbaFile(),
		"ident_file":              dir.identFile(),
		"data_directory":          dir.pg(),
	}
}

var settingName = regexp.MustCompile(`^[a-z_][a-z0-9_.]*$`)

// checkSettings refuses settings that cannot be passed on or are not the caller's to choose.
func checkSettings(extra map[string]string) error {
	own := reserved("", "")
	own["config_file"], own["external_pid_file"] = "", ""
	for name, value := range extra {
		switch _, taken := own[strings.ToLower(name)]; {
		case taken:
			return fmt.Errorf("the PostgreSQL setting %q cannot be chosen: a private server is reached through its data directory alone", name)
		case !settingName.MatchString(strings.ToLower(name)):
			return fmt.Errorf("%q is not the name of a PostgreSQL setting", name)
		case strings.ContainsRune(value, 0):
			return fmt.Errorf("the PostgreSQL setting %s has a NUL in its value", name)
		}
	}
	return nil
}

// arguments returns the settings as postgres takes them. The command line outranks
// every file and ALTER SYSTEM.
func arguments(dir dataDir, socket socketDir, extra map[string]string) []string {
	settings := defaults()
	for name, value := range extra {
		settings[strings.ToLower(name)] = value
	}
	maps.Copy(settings, reserved(dir, socket))
	var args []string
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", name+"="+settings[name])
	}
	return args
}

// fsyncIsOff reports whether the caller has said that the data need not outlive the machine.
func fsyncIsOff(extra map[string]string) bool {
	for name, value := range extra {
		if strings.EqualFold(name, "fsync") {
			return slices.Contains([]string{"off", "false", "no", "0"}, strings.ToLower(value))
		}
	}
	return false
}
