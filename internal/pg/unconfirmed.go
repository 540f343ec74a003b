package pg

import (
	"cmp"
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// unconfirmedKey is where a connection remembers that a commit was not confirmed.
const unconfirmedKey = "queued.unconfirmed"

// noteUnconfirmed is told of notices. PostgreSQL has no SQLSTATE for this one: it is a WARNING, 01000, of SyncRepWaitForLSN,
// whose text is translated and whose routine is not.
func noteUnconfirmed(conn *pgconn.PgConn, n *pgconn.Notice) {
	if n.Routine == "SyncRepWaitForLSN" {
		conn.CustomData()[unconfirmedKey] = true
	}
}

// confirmed returns err, or ErrUnconfirmed when there is none and a commit of conn since the last call was not confirmed.
func confirmed(conn *pgconn.PgConn, err error) error {
	data := conn.CustomData()
	if _, noted := data[unconfirmedKey]; noted {
		delete(data, unconfirmedKey)
		if err == nil {
			return ErrUnconfirmed
		}
	}
	return err
}

// Exec is as pgxpool has it.
func (p *Pool) Exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	if p.prologue != "" {
		rows, _ := p.Query(ctx, sql, args...) // Err returns the error
		rows.Close()
		return rows.CommandTag(), rows.Err()
	}
	err = p.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		tag, err = c.Exec(ctx, sql, args...)
		return confirmed(c.Conn().PgConn(), err)
	})
	return tag, err
}

// Query is as pgxpool has it. Whether its commit was confirmed is known when the rows are closed.
func (p *Pool) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	c, err := p.Acquire(ctx)
	if err != nil {
		return failedRows{err: err}, err
	}
	if p.prologue != "" {
		return p.queryAfterPrologue(ctx, c, sql, args)
	}
	rows, err := c.Query(ctx, sql, args...)
	if err != nil {
		c.Release()
		return failedRows{err: err}, err
	}
	return &confirmedRows{Rows: rows, holder: holder{conn: c}}, nil
}

// queryAfterPrologue runs a statement in one transaction, and one round trip, with the prologue.
func (p *Pool) queryAfterPrologue(ctx context.Context, c *pgxpool.Conn, sql string, args []any) (pgx.Rows, error) {
	b := new(pgx.Batch)
	b.Queue(p.prologue)
	b.Queue(sql, args...)
	results := c.SendBatch(ctx, b)
	_, err := results.Exec()
	var rows pgx.Rows
	if err == nil {
		rows, err = results.Query()
	}
	if err != nil {
		_ = results.Close() // it says the same
		c.Release()
		return failedRows{err: err}, err
	}
	return &confirmedRows{Rows: rows, batch: results, holder: holder{conn: c}}, nil
}

// QueryRow is as pgxpool has it.
func (p *Pool) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, _ := p.Query(ctx, sql, args...) // Scan returns the error
	return confirmedRow{rows}
}

// SendBatch is as pgxpool has it. Whether its commit was confirmed is known when it is closed.
func (p *Pool) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	c, err := p.Acquire(ctx)
	if err != nil {
		return failedBatch{err: err}
	}
	return &confirmedBatch{BatchResults: c.SendBatch(ctx, b), holder: holder{conn: c}}
}

// Begin is as pgxpool has it.
func (p *Pool) Begin(ctx context.Context) (pgx.Tx, error) { return p.BeginTx(ctx, pgx.TxOptions{}) }

// BeginTx is as pgxpool has it.
func (p *Pool) BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error) {
	c, err := p.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	tx, err := c.BeginTx(ctx, options)
	if err != nil {
		c.Release()
		return nil, err
	}
	if p.prologue != "" {
		if _, err := tx.Exec(ctx, p.prologue); err != nil {
			_ = tx.Rollback(ctx) // it says the same
			c.Release()
			return nil, err
		}
	}
	return &confirmedTx{Tx: tx, holder: holder{conn: c}}, nil
}

// holder gives a connection back, once.
type holder struct{ conn *pgxpool.Conn }

// release returns err, or ErrUnconfirmed.
func (h *holder) release(err error) error {
	if h.conn == nil {
		return err
	}
	err = confirmed(h.conn.Conn().PgConn(), err)
	h.conn.Release()
	h.conn = nil
	return err
}

type confirmedTx struct {
	pgx.Tx
	holder
}

// Commit fails with ErrUnconfirmed when the transaction is committed, but not as durably as it should be.
func (tx *confirmedTx) Commit(ctx context.Context) error { return tx.release(tx.Tx.Commit(ctx)) }

// Rollback undoes the transaction, unless it has ended.
func (tx *confirmedTx) Rollback(ctx context.Context) error { return tx.release(tx.Tx.Rollback(ctx)) }

type confirmedBatch struct {
	pgx.BatchResults
	holder
}

// Close reads what is left of the results. The implicit transaction of a batch is committed by then.
func (b *confirmedBatch) Close() error { return b.release(b.BatchResults.Close()) }

type confirmedRows struct {
	pgx.Rows
	holder
	batch pgx.BatchResults // of which the rows are, or nil
	err   error
}

// Close reads what is left of the rows.
func (r *confirmedRows) Close() {
	r.Rows.Close()
	if r.conn == nil {
		return
	}
	err := r.Rows.Err()
	if r.batch != nil { // its commit comes after the rows
		err = cmp.Or(err, r.batch.Close())
	}
	r.err = r.release(err)
}

// Next closes the rows after the last one.
func (r *confirmedRows) Next() bool {
	more := r.Rows.Next()
	if !more {
		r.Close()
	}
	return more
}

// Scan closes the rows when it fails.
func (r *confirmedRows) Scan(dest ...any) error {
	err := r.Rows.Scan(dest...)
	if err != nil {
		r.Close()
	}
	return err
}

// Values closes the rows when it fails.
func (r *confirmedRows) Values() ([]any, error) {
	values, err := r.Rows.Values()
	if err != nil {
		r.Close()
	}
	return values, err
}

// Err is to be called when the rows are closed.
func (r *confirmedRows) Err() error { return cmp.Or(r.err, r.Rows.Err()) }

type confirmedRow struct{ rows pgx.Rows }

// Scan reads the first row, and fails with pgx.ErrNoRows when there is none.
func (r confirmedRow) Scan(dest ...any) error {
	defer r.rows.Close()
	if err := r.rows.Err(); err != nil {
		return err
	}
	if !r.rows.Next() {
		return cmp.Or(r.rows.Err(), pgx.ErrNoRows)
	}
	if err := r.rows.Scan(dest...); err != nil {
		return err
	}
	r.rows.Close()
	return r.rows.Err()
}

// failedRows are those of a statement that was not sent.
type failedRows struct {
	pgx.Rows // nil
	err      error
}

// Close is a method of pgx.Rows.
func (failedRows) Close() {}

// Err is a method of pgx.Rows.
func (r failedRows) Err() error { return r.err }

// CommandTag is a method of pgx.Rows.
func (failedRows) CommandTag() (tag pgconn.CommandTag) { return tag }

// FieldDescriptions is a method of pgx.Rows.
func (failedRows) FieldDescriptions() []pgconn.FieldDescription { return nil }

// Next is a method of pgx.Rows.
func (failedRows) Next() bool { return false }

// Scan is a method of pgx.Rows.
func (r failedRows) Scan(...any) error { return r.err }

// Values is a method of pgx.Rows.
func (r failedRows) Values() ([]any, error) { return nil, r.err }

// RawValues is a method of pgx.Rows.
func (failedRows) RawValues() [][]byte { return nil }

// Conn is a method of pgx.Rows.
func (failedRows) Conn() *pgx.Conn { return nil }

// failedBatch are the results of a batch that was not sent.
type failedBatch struct{ err error }

// Exec is a method of pgx.BatchResults.
func (b failedBatch) Exec() (tag pgconn.CommandTag, err error) { return tag, b.err }

// Query is a method of pgx.BatchResults.
func (b failedBatch) Query() (pgx.Rows, error) { return failedRows{err: b.err}, b.err }

// QueryRow is a method of pgx.BatchResults.
func (b failedBatch) QueryRow() pgx.Row { return confirmedRow{failedRows{err: b.err}} }

// Close is a method of pgx.BatchResults.
func (b failedBatch) Close() error { return b.err }

// Tx is a method of pgx.BatchResults.
func (failedBatch) Tx() pgx.Tx { return nil }
