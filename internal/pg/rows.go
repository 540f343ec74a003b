package pg

import (
	"cmp"
	"encoding/json"
	"fmt"
	"iter"
	"reflect"
	"strings"

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

// Each yields rows as structs: each column goes into the field with its name, as it is without underscores and in lower case, or with its
// name as the field's tag db. Fields of embedded structs count as the struct's own. What is null in a row stays zero in the struct. The
// rows are closed when the sequence ends, with an error if there was one.
func Each[T any](rows pgx.Rows) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		defer rows.Close()
		var (
			reader    *RowReader
			row, zero T
			dest      []any // the fields of row
		)
		for rows.Next() {
			if reader == nil {
				reader = NewRowReader(rows)
				fields, err := fieldsOf(reflect.TypeFor[T](), rows)
				if err != nil {
					yield(zero, err)
					return
				}
				for _, index := range fields {
					dest = append(dest, destination(reflect.ValueOf(&row).Elem().FieldByIndex(index)))
				}
			}
			row = zero // also so that no two rows share what a field points to
			if err := reader.Read(dest...); !yield(row, err) || err != nil {
				return
			}
		}
		rows.Close()
		if err := rows.Err(); err != nil {
			yield(zero, err)
		}
	}
}

// fieldsOf returns where the columns of rows go in a struct.
func fieldsOf(t reflect.Type, rows pgx.Rows) (fields [][]int, err error) {
	byColumn := make(map[string][]int)
	for _, f := range reflect.VisibleFields(t) {
		if !f.Anonymous {
			byColumn[cmp.Or(f.Tag.Get("db"), strings.ToLower(f.Name))] = f.Index
		}
	}
	for _, column := range rows.FieldDescriptions() {
		index := byColumn[column.Name]
		if index == nil {
			index = byColumn[strings.ReplaceAll(column.Name, "_", "")]
		}
		if index == nil {
			return nil, fmt.Errorf("%s has no field for the column %s", t, column.Name)
		}
		fields = append(fields, index)
	}
	return fields, nil
}

// destination returns what a column is scanned into to set a field. A json.RawMessage gets the text as it is.
func destination(field reflect.Value) any {
	if field.Kind() == reflect.Slice && field.Type().Elem().Kind() == reflect.Uint8 {
		return field.Addr().Convert(reflect.TypeFor[*[]byte]()).Interface()
	}
	return field.Addr().Interface()
}

// Collect returns rows as structs: see Each.
func Collect[T any](rows pgx.Rows) (all []T, err error) {
	for row, err := range Each[T](rows) {
		if err != nil {
			return nil, err
		}
		all = append(all, row)
	}
	return all, nil
}

// CollectOne returns the first row as a struct: see Each. It fails with pgx.ErrNoRows when there is none.
func CollectOne[T any](rows pgx.Rows) (row T, err error) {
	all, err := Collect[T](rows)
	switch {
	case err != nil:
		return row, err
	case len(all) == 0:
		return row, pgx.ErrNoRows
	}
	return all[0], nil
}

// OrNull returns a statement's argument: v, or null for the zero value.
func OrNull[T comparable](v T) *T {
	if v == *new(T) {
		return nil
	}
	return &v
}

// JSONArg returns a statement's argument: v, or null when there is none.
func JSONArg(v json.RawMessage) *string {
	if v == nil {
		return nil
	}
	return new(string(v))
}

// SetArg puts v at i into a statement's argument of n values. The argument stays null as long as no v is other than nil, which spares the database
// reading it.
func SetArg[T any](values *[]*T, n, i int, v *T) {
	if v == nil {
		return
	}
	if *values == nil {
		*values = make([]*T, n)
	}
	(*values)[i] = v
}
