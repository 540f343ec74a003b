package pg

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Safety has the settings of a server that decide whether a commit survives a crash or a failover.
type Safety struct {
	Fsync             bool
	FullPageWrites    bool
	SynchronousCommit string // on, remote_apply, remote_write, local or off
	StandbyNames      string // of the synchronous standbys; empty: commits wait for none
}

// IsSynchronous reports whether each commit waits for a standby.
func (s Safety) IsSynchronous() bool {
	switch s.SynchronousCommit {
	case "on", "remote_apply", "remote_write":
		return s.StandbyNames != ""
	}
	return false
}

// Unsafe returns the settings, by name, under which commits may be lost, with the consequence of each.
func (s Safety) Unsafe() map[string]string {
	unsafe := make(map[string]string)
	if !s.Fsync {
		unsafe["fsync"] = "it is off: a crash of the machine may lose or corrupt everything"
	}
	if !s.FullPageWrites {
		unsafe["full_page_writes"] = "it is off: a crash of the machine may corrupt pages that were being written"
	}
	switch s.SynchronousCommit {
	case "off":
		unsafe["synchronous_commit"] = "it is off: a crash of the server loses the latest commits"
	case "local":
		unsafe["synchronous_commit"] = "it is local: a failover loses commits that the standby has not received"
	}
	if s.StandbyNames == "" {
		unsafe["synchronous_standby_names"] = "it is empty: a failover loses commits that the standby has not received"
	}
	return unsafe
}

// SafetySettings are the names of the settings in Safety.
var SafetySettings = []string{"fsync", "full_page_writes", "synchronous_commit", "synchronous_standby_names"}

// ReadSafety reads the settings of the server.
func ReadSafety(ctx context.Context, q interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
},
) (s Safety, err error) {
	err = q.QueryRow(ctx, `
		select current_setting('fsync') = 'on', current_setting('full_page_writes') = 'on',
			current_setting('synchronous_commit'), current_setting('synchronous_standby_names')`).
		Scan(&s.Fsync, &s.FullPageWrites, &s.SynchronousCommit, &s.StandbyNames)
	return s, err
}
