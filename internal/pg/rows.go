package pg

import (
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// A RowReader scans rows as pgx.Rows does, but a row that cannot be read does not end the reading of the others.
type RowReader struct {
	rows  pgx.Rows
	types *pgtype.Map
	plans []pgtype.ScanPlan // of each column, for the type of its destination
}

// NewRowReader returns a RowReader of rows.
func NewRowReader(rows pgx.Rows) *RowReader {
	return &RowReader{rows: rows, types: rows.Conn().TypeMap()}
}

// Read scans the row into dest, of the same types for each row. It passes over columns whose destination is nil, and leaves alone what is null in the
// row: most columns of most events are, and each has its price.
func (r *RowReader) Read(dest ...any) error {
	values := r.rows.RawValues()
	if len(values) != len(dest) {
		return fmt.Errorf("%d columns, want %d", len(values), len(dest))
	}
	if r.plans == nil {
		r.plans = make([]pgtype.ScanPlan, len(dest))
	}
	for i, value := range values {
		if value == nil || dest[i] == nil {
			continue
		}
		column := &r.rows.FieldDescriptions()[i]
		if r.plans[i] == nil {
			r.plans[i] = r.types.PlanScan(column.DataTypeOID, column.Format, dest[i])
		}
		if err := r.plans[i].Scan(value, dest[i]); err != nil {
			return fmt.Errorf("column %s: %w", column.Name, err)
		}
	}
	return nil
}
