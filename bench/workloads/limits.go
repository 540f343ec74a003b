package workloads

import (
	"fmt"
	"time"
)

const (
	// maxWorkers is more connections than one address can have to one port.
	maxWorkers = 50_000
	// maxBatch is the most events that the server takes at once.
	maxBatch = 1000
)

// checkList refuses a list that is empty or has a number out of range.
func checkList(flag string, list []int, least, most int) error {
	if len(list) == 0 {
		return Invalidf("%s: got nothing; takes whole numbers from %d to %d, separated by commas", flag, least, most)
	}
	for _, n := range list {
		if n < least || n > most {
			return Invalidf("%s: got %d; takes whole numbers from %d to %d, separated by commas", flag, n, least, most)
		}
	}
	return nil
}

func checkNumber(flag string, n, least, most int) error {
	if n < least || n > most {
		return Invalidf("%s: got %d; takes a whole number from %d to %d", flag, n, least, most)
	}
	return nil
}

func checkDuration(flag string, d time.Duration) error {
	if d <= 0 {
		return Invalidf("%s: got %s; takes a duration such as 10s, more than zero", flag, d)
	}
	return nil
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// repeat is a task for n workers.
func repeat(n int, t task) []task {
	tasks := make([]task, n)
	for i := range tasks {
		tasks[i] = t
	}
	return tasks
}

// needDatabase refuses a server whose database is not known.
func needDatabase(cfg Config, why string) error {
	if cfg.URL != "" && cfg.DatabaseURL == "" {
		return Invalidf("%s: with --url it needs the --database-url of that server, too", why)
	}
	return nil
}

// needOwnServers refuses a server that was given.
func needOwnServers(cfg Config, why string) error {
	if cfg.URL != "" {
		return Invalidf("%s: it starts servers of its own, so leave --url out; --database-url says on which PostgreSQL", why)
	}
	return nil
}
