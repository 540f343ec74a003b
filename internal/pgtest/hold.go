package pgtest

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// A Hold keeps statements that insert into a table, or update it, from their end until it is released.
type Hold struct {
	tb   testing.TB
	conn *pgx.Conn
}

// HoldWrites holds the statements that write to a table, as one that is slow or whose answer is late. When ignoresCancel, one that is cancelled goes on to its end, as it does when the
// cancellation comes a moment too late.
func HoldWrites(tb testing.TB, url, table string, ignoresCancel bool) *Hold {
	tb.Helper()
	handler := ""
	if ignoresCancel {
		handler = "exception when query_canceled then null;"
	}
	h := &Hold{tb, Connect(tb, url)}
	if _, err := h.conn.Exec(tb.Context(), fmt.Sprintf(`
		create table public.hold (is_released boolean);
		grant select on public.hold to public;
		create function public.hold() returns trigger language plpgsql set search_path to pg_catalog as $func$
		begin
			begin
				while not exists (select from public.hold) loop
					perform pg_sleep(0.01);
				end loop;
			%s
			end;
			return null;
		end
		$func$;
		create trigger hold before insert or update on %s execute function public.hold()`, handler, table)); err != nil {
		tb.Fatal(err)
	}
	return h
}

// Await waits until a statement is held.
func (h *Hold) Await() {
	h.tb.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		if Query[bool](h.tb, h.conn, `select exists (select from pg_stat_activity a where a.wait_event = 'PgSleep' and a.datname = current_database())`) {
			return
		}
		if time.Now().After(deadline) {
			h.tb.Fatal("no statement is held")
		}
		if _, err := h.conn.Exec(h.tb.Context(), `select pg_sleep(0.005)`); err != nil {
			h.tb.Fatal(err)
		}
	}
}

// Release lets the statements go on, those of now and of later.
func (h *Hold) Release() {
	h.tb.Helper()
	if _, err := h.conn.Exec(h.tb.Context(), `insert into public.hold values (true)`); err != nil {
		h.tb.Fatal(err)
	}
}
