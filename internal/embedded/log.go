package embedded

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// logLimit is the size from which a start puts the log aside. With the settings of this package
// PostgreSQL writes a few lines per start.
const logLimit = 8 << 20

// openLog opens postgres.log for a new process and returns where its part will begin. A long log
// becomes postgres.log.1, in place of the one before.
func (d dataDir) openLog() (*os.File, int64, error) {
	if info, err := os.Lstat(d.logFile()); err == nil && info.Size() > logLimit {
		if err := os.Rename(d.logFile(), d.logFile()+".1"); err != nil {
			return nil, 0, fmt.Errorf("put the PostgreSQL log aside: %w", err)
		}
	}
	file, err := d.open(d.logFile(), os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, 0, fmt.Errorf("the PostgreSQL log: %w", err)
	}
	from, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("the PostgreSQL log: %w", err), file.Close())
	}
	return file, from, nil
}

// logTail returns the last lines of what was logged after offset from.
func (d dataDir) logTail(from int64) string {
	const most = 8 << 10
	file, err := os.Open(d.logFile())
	if err != nil {
		return ""
	}
	defer func() { _ = file.Close() }()
	if info, err := file.Stat(); err == nil {
		from = max(from, info.Size()-most)
	}
	text, err := io.ReadAll(io.NewSectionReader(file, from, most))
	if err != nil {
		return ""
	}
	return lastLines(text)
}
