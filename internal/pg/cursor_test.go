package pg_test

import (
	"encoding/base64"
	"errors"
	"math"
	"reflect"
	"testing"

	"github.com/queued/queued/internal/pg"
)

func TestCursorIsReadAsItWasWritten(t *testing.T) {
	t.Parallel()
	for _, at := range []pg.Timestamp{0, 1, math.MinInt64, math.MaxInt64, -211_813_488_000_000_000, 9_223_371_331_199_999_999} {
		want := pg.Cursor{Listing: "events", At: &at, ID: new(int64(7)), Name: new("with a blank")}
		got, err := pg.ParseCursor("events", want.String())
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("read %+v, %v, want %+v", got, err, want)
		}
	}
	if got, err := pg.ParseCursor("events", ""); err != nil || got != (pg.Cursor{}) {
		t.Errorf("the empty cursor was read as %+v, %v", got, err)
	}
}

func TestCursorThatNoPageEndedWithIsRefused(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"no base64":        "****",
		"no JSON":          base64.RawURLEncoding.EncodeToString([]byte("x")),
		"another listing":  pg.Cursor{Listing: "history"}.String(),
		"too early":        pg.Cursor{Listing: "events", At: new(pg.Timestamp(-211_813_488_000_000_001))}.String(),
		"too late":         pg.Cursor{Listing: "events", At: new(pg.Timestamp(9_223_371_331_200_000_000))}.String(),
		"a null character": pg.Cursor{Listing: "events", Name: new("a\x00")}.String(),
	} {
		if got, err := pg.ParseCursor("events", text); !errors.Is(err, pg.ErrBadCursor) {
			t.Errorf("%s: read %+v, %v", name, got, err)
		}
	}
}
