package pg_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/queued/queued/internal/pg"
)

func TestListsOfTextsAreWrittenAsPgxWritesThem(t *testing.T) {
	t.Parallel()
	ours, theirs := pgtype.NewMap(), pgtype.NewMap()
	pg.RegisterTypes(ours)
	a, empty := "a", ""
	for _, value := range []any{
		[]string(nil),
		[]string{},
		[]string{""},
		[]string{"a", "\u00e9\u20ac", `{"a":[1,null,"NULL"]}`},
		[]*string(nil),
		[]*string{},
		[]*string{nil},
		[]*string{&a, nil, &empty, &a},
		pgtype.FlatArray[string]{"a"},
	} {
		for _, format := range []int16{pgtype.BinaryFormatCode, pgtype.TextFormatCode} {
			want, wantErr := theirs.Encode(pgtype.TextArrayOID, format, value, []byte("before"))
			got, err := ours.Encode(pgtype.TextArrayOID, format, value, []byte("before"))
			if diff := cmp.Diff(want, got); diff != "" || err != nil || wantErr != nil {
				t.Errorf("%#v in format %d: %v, %v (-pgx +ours)\n%s", value, format, wantErr, err, diff)
			}
		}
	}
}

//nolint:paralleltest // it counts allocations
func TestListsOfTextsTakeNoAllocationForEach(t *testing.T) {
	ours := pgtype.NewMap()
	pg.RegisterTypes(ours)
	texts, buf := []string{"a", "b", "c"}, make([]byte, 0, 100)
	if n := testing.AllocsPerRun(100, func() { _, _ = ours.Encode(pgtype.TextArrayOID, pgtype.BinaryFormatCode, texts, buf) }); n > 1 {
		t.Errorf("three texts take %v allocations", n)
	}
}
