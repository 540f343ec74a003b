//go:build unix

package faults

import (
	"errors"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/queued/queued/internal/migrate"
)

// After a start the first who publishes moves the log on, which those whose snapshots are older do not see.
func TestPublishersWithOldSnapshotsFailNobodyAfterACrash(t *testing.T) {
	t.Parallel()
	const rounds, perIsolation, strangers, perStranger = 3, 4, 4, 20
	server := Start(t, Config{})
	if _, err := migrate.Run(t.Context(), migrate.Config{DatabaseURL: server.AdminURL()}); err != nil {
		t.Fatal(err)
	}
	crashes := map[bool]func(){
		true: func() {
			server.Kill()
			server.Start()
		},
		false: func() { // the start time stays
			bystander, err := pgx.Connect(t.Context(), server.AdminURL())
			if err != nil {
				t.Fatal(err)
			}
			server.killBackend()
			_, _ = bystander.WaitForNotification(t.Context()) // until the server has ended all sessions
			server.AwaitReady()
		},
	}
	for round := range rounds {
		crashes[round%2 == 0]()
		type publisher struct {
			conn      *pgx.Conn
			isolation string
		}
		var publishers []publisher
		for _, isolation := range []string{"repeatable read", "serializable"} {
			for range perIsolation {
				conn, err := pgx.Connect(t.Context(), server.AdminURL())
				if err != nil {
					t.Fatal(err)
				}
				if _, err := conn.Exec(t.Context(), `begin isolation level `+isolation+`; select count(*) from agent.log_settings; select agent.publish('old', '{}')`); err != nil {
					t.Fatal(err)
				}
				publishers = append(publishers, publisher{conn, isolation})
			}
		}
		var publishing sync.WaitGroup
		for _, p := range publishers {
			publishing.Go(func() {
				defer func() { _ = p.conn.Close(t.Context()) }()
				_, err := p.conn.Exec(t.Context(), `commit`)
				pgErr := new(pgconn.PgError)
				for p.isolation == "serializable" && errors.As(err, &pgErr) && pgErr.Code == "40001" && t.Context().Err() == nil {
					if _, err = p.conn.Exec(t.Context(), `begin isolation level serializable; select agent.publish('old', '{}'); commit`); err != nil {
						_, _ = p.conn.Exec(t.Context(), `rollback`)
					}
				}
				if err != nil {
					t.Errorf("round %d: a transaction with the isolation level %s: %v", round, p.isolation, err)
				}
			})
		}
		for range strangers {
			publishing.Go(func() {
				conn, err := pgx.Connect(t.Context(), server.AdminURL())
				if err != nil {
					t.Error(err)
					return
				}
				defer func() { _ = conn.Close(t.Context()) }()
				for range perStranger {
					if _, err := conn.Exec(t.Context(), `select agent.publish('new', '{}')`); err != nil {
						t.Errorf("round %d: a stranger: %v", round, err)
					}
				}
			})
		}
		publishing.Wait()
		if t.Failed() {
			return
		}
	}
	const want = rounds * (2*perIsolation + strangers*perStranger)
	if n := query[int](t, server.AdminURL(), `select count(*) from agent.log where topic in ('old', 'new')`); n != want {
		t.Errorf("%d events are in the log, want %d", n, want)
	}
	if n := query[int](t, server.AdminURL(), `select count(*) from agent.log_skip`); n > rounds+1 {
		t.Errorf("the log was moved on %d times by %d crashes", n, rounds)
	}
}
