package suite

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// machine is what the numbers were measured on.
type machine struct {
	CPU         string            `json:"cpu"`
	Cores       int               `json:"cores"`
	MemoryMiB   int               `json:"memory_mib"`
	System      string            `json:"system"`
	Go          string            `json:"go"`
	PostgreSQL  string            `json:"postgresql"`
	TimescaleDB string            `json:"timescaledb,omitempty"` // empty: not loaded
	Settings    map[string]string `json:"settings"`              // of the server, where they are not PostgreSQL's defaults
	Careless    []string          `json:"careless,omitempty"`    // settings with which a commit may be lost
}

// durability are the settings that make a commit last, and what they have to be.
var durability = map[string][]string{
	"fsync":              {"on"},
	"full_page_writes":   {"on"},
	"synchronous_commit": {"on", "remote_apply"},
}

// lookAround describes this machine and the server.
func lookAround(ctx context.Context, s *server) (machine, error) {
	m := machine{
		CPU:       cpuModel(),
		Cores:     runtime.NumCPU(),
		MemoryMiB: memoryMiB(),
		System:    runtime.GOOS + "/" + runtime.GOARCH,
		Go:        runtime.Version(),
		Settings:  map[string]string{},
	}
	err := s.with(ctx, "", func(conn *pgx.Conn) error {
		err := conn.QueryRow(ctx, `select current_setting('server_version'), coalesce(
			(select default_version from pg_catalog.pg_available_extensions
			where name = 'timescaledb' and current_setting('shared_preload_libraries') like '%timescaledb%'), '')`).Scan(&m.PostgreSQL, &m.TimescaleDB)
		if err != nil {
			return err
		}
		rows, err := conn.Query(ctx, `select name, current_setting(name), source not in ('default', 'client', 'override') and setting is distinct from boot_val
			from pg_catalog.pg_settings where name not like '%\_file' and name not in ('data_directory', 'unix_socket_directories', 'unix_socket_permissions', 'port')`)
		if err != nil {
			return err
		}
		var name, value string
		var changed bool
		_, err = pgx.ForEachRow(rows, []any{&name, &value, &changed}, func() error {
			if changed {
				m.Settings[name] = value
			}
			if want, ok := durability[name]; ok && !slices.Contains(want, value) {
				m.Careless = append(m.Careless, fmt.Sprintf("%s = %s", name, value))
			}
			return nil
		})
		slices.Sort(m.Careless)
		return err
	})
	return m, err
}

// lookFor is how long the processors are watched.
const lookFor = 300 * time.Millisecond

// busyShare returns the part of the processors that is in use while this program does nothing; 0 where the system does not tell.
func busyShare(ctx context.Context) float64 {
	idle, all := processorTimes("/proc/stat")
	timer := time.NewTimer(lookFor)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	idleNow, allNow := processorTimes("/proc/stat")
	if allNow <= all {
		return 0
	}
	return 1 - (idleNow-idle)/(allNow-all)
}

// processorTimes returns how long all processors together were idle, and how long they were there, in ticks.
func processorTimes(path string) (idle, all float64) {
	body, err := os.ReadFile(path) //nolint:gosec // One of the kernel's.
	if err != nil {
		return 0, 0
	}
	line, _, _ := strings.Cut(string(body), "\n")
	fields := strings.Fields(line)
	// cpu user nice system idle iowait irq softirq steal, and then guests, which user has counted already.
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, 0
	}
	for i, field := range fields[1:9] {
		ticks, err := strconv.ParseFloat(field, 64)
		if err != nil {
			return 0, 0
		}
		all += ticks
		if i == 3 || i == 4 {
			idle += ticks
		}
	}
	return idle, all
}

// cpuModel returns the processor's name where the system tells it.
func cpuModel() string {
	return procField("/proc/cpuinfo", "model name")
}

func memoryMiB() int {
	var kib int
	_, _ = fmt.Sscanf(procField("/proc/meminfo", "MemTotal"), "%d kB", &kib)
	return kib / 1024
}

// procField returns the value of the first line "name : value" of a file, empty where there is none.
func procField(path, name string) string {
	file, err := os.Open(path) //nolint:gosec // One of the kernel's.
	if err != nil {
		return ""
	}
	defer func() { _ = file.Close() }()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if field, value, found := strings.Cut(lines.Text(), ":"); found && strings.TrimSpace(field) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
