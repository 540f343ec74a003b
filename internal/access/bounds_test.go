package access

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/queued/queued/internal/pgtest"
)

const (
	maxVersion  = 1<<53 - 1 // of a copy
	maxInt8     = `9223372036854775807`
	day         = 24 * time.Hour
	farFuture   = `294276-12-31 23:59:59+00`
	withinTests = time.Hour // more than a test takes
)

// copyWith returns a copy of a key with other members, each in JSON.
func copyWith(t *testing.T, copied json.RawMessage, members map[string]string) json.RawMessage {
	t.Helper()
	var changed map[string]json.RawMessage
	if err := json.Unmarshal(copied, &changed); err != nil {
		t.Fatal(err)
	}
	for name, value := range members {
		changed[name] = json.RawMessage(value)
	}
	text, err := json.Marshal(changed)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// copyOf returns the copy of one key.
func copyOf(t *testing.T, s *Service, id string) json.RawMessage {
	t.Helper()
	copies, _ := copiesOf(t, s, 0)
	for _, one := range copies {
		if strings.Contains(string(one), `"id": "`+id+`"`) {
			return one
		}
	}
	t.Fatalf("there is no copy of %s", id)
	return nil
}

// inJSON returns a time as a copy has it.
func inJSON(at time.Time) string { return at.UTC().Format(`"2006-01-02T15:04:05.999999Z"`) }

func TestVersionsAndTimesOfCopiesAreBounded(t *testing.T) {
	t.Parallel()
	homeDB, cellDB := pgtest.New(t), pgtest.New(t)
	home, cell := openOn(t, homeDB), cellOn(t, cellDB)
	create(t, cell, CreateParams{Scopes: []Scope{Admin}})
	id, _ := create(t, home, CreateParams{Scopes: []Scope{Read}})
	_, _, err := home.Rotate(t.Context(), id, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	honest := copyOf(t, home, id)
	now := time.Now()
	n := 0
	for name, values := range map[string]map[string]bool{ // whether each is taken
		"change": {`1`: true, `-5`: true, `null`: false, `"x"`: false, `1.5`: false, `9223372036854775808`: false},
		"scopes": {`["read"]`: true, `[["read"]]`: false, `[["admin"],["read"]]`: false},
		"version": {
			`-9223372036854775808`: false, `-1`: false, `0`: false, `null`: false, `1`: true, `2`: true, `9007199254740990`: true, `9007199254740991`: true, `9007199254740992`: false,
			maxInt8: false, `9223372036854775808`: false, `1e30`: false, `1.5`: false, `"x"`: false, `[1]`: false,
		},
		"created_at": {
			`null`: false, `"-infinity"`: false, `"0001-01-01T00:00:00Z"`: false, `"1999-12-31T23:59:59.999999Z"`: false, `"2000-01-01T00:00:00Z"`: true,
			inJSON(now.Add(day - withinTests)): true, inJSON(now.Add(day + withinTests)): false, `"294276-12-31T23:59:59Z"`: false, `"infinity"`: false, `"x"`: false, `"300000-01-01"`: false,
		},
		"updated_at": {
			`null`: false, `"-infinity"`: false, `"0001-01-01T00:00:00Z"`: false, `"1999-12-31T23:59:59.999999Z"`: false, `"2000-01-01T00:00:00Z"`: true,
			inJSON(now.Add(day - withinTests)): true, inJSON(now.Add(day + withinTests)): false, `"294276-12-31T23:59:59Z"`: false, `"infinity"`: false, `7`: false,
		},
		"previous_until": {
			`"-infinity"`: false, `"1999-12-31T23:59:59.999999Z"`: false, `"2000-01-01T00:00:00Z"`: true, inJSON(now.Add(366*day - withinTests)): true,
			inJSON(now.Add(366*day + withinTests)): false, `"294276-12-31T23:59:59Z"`: false, `"infinity"`: false,
		},
		"expires_at": {
			`"-infinity"`: false, `"0001-12-31T23:59:59Z BC"`: false, `"0001-01-01T00:00:00Z"`: true, `null`: true, `"9999-12-31T23:59:59.999999Z"`: true, `"10000-01-01T00:00:00Z"`: false,
			`"9999-12-31T23:59:59-01:00"`: false, `"294276-12-31T23:59:59Z"`: false, `"infinity"`: false,
		},
	} {
		for value, isTaken := range values {
			n++
			copied := copyWith(t, honest, map[string]string{"id": fmt.Sprintf(`"%s"`, strings.Map(func(r rune) rune { return 'a' + r - '0' }, fmt.Sprintf("%08d", n))), name: value})
			before := keysOf(t, cellDB)
			results, err := cell.PutCopies(t.Context(), PutCopiesParams{Copies: []json.RawMessage{copied}, Epoch: "e"})
			if err != nil {
				t.Fatal(err)
			}
			if isTaken != (results[0].Result == CopyApplied) || isTaken != (results[0].Err == nil) || isTaken == (keysOf(t, cellDB) == before) {
				t.Errorf("a copy with the %s %s was %s: %v", name, value, results[0].Result, results[0].Err)
			}
			if invalid, ok := errors.AsType[*InvalidError](results[0].Err); !isTaken && (!ok || !strings.Contains(invalid.Detail, name)) {
				t.Errorf("a copy with the %s %s was refused with %v, which does not name it", name, value, results[0].Err)
			}
		}
	}
	if _, err := cell.List(t.Context(), 100, ""); err != nil {
		t.Errorf("keys are not listed: %v", err)
	}
}

func TestKeyOfAnyStoredVersionCanBeChangedAndRevoked(t *testing.T) {
	t.Parallel()
	for _, stored := range []string{
		`version = ` + maxInt8,
		`version = ` + maxInt8 + ` - 1`,
		`version = 9007199254740991`,
		`version = 9007199254740990`,
		`version = -9223372036854775808`,
		`version = ` + maxInt8 + `, created_at = '` + farFuture + `', updated_at = '` + farFuture + `'`,
		`version = 9007199254740991, updated_at = now() + interval '23 hours'`,
		`version = 9007199254740991, updated_at = '0001-01-01 00:00+00 BC', created_at = now() + interval '2 days'`,
	} {
		t.Run(stored, func(t *testing.T) {
			t.Parallel()
			homeDB, cellDB := pgtest.New(t), pgtest.New(t)
			home, cell := openOn(t, homeDB), cellOn(t, cellDB)
			create(t, home, CreateParams{Scopes: []Scope{Admin}})
			id, text := create(t, home, CreateParams{Scopes: []Scope{Admin}})
			exchange := func() {
				t.Helper()
				copies, _ := copiesOf(t, home, 1)
				put(t, cell, copies...)
				if a, b := keysOf(t, homeDB), keysOf(t, cellDB); a != b {
					t.Fatalf("home has\n%s\nand the cell\n%s", a, b)
				}
			}
			exchange()
			for _, db := range []*pgtest.DB{homeDB, cellDB} { // as a copy of before there were bounds has left it
				run(t, db, `update agent.api_key set `+stored+` where id = $1`, id)
			}
			hostile := copyOf(t, home, id)
			exchange()
			if _, err := home.Update(t.Context(), id, Change{Name: new("changed")}, nil); err != nil {
				t.Fatal(err)
			}
			exchange()
			if k, err := cell.Get(t.Context(), id); err != nil || k.Name != "changed" || k.Version > maxVersion || k.Version < 1 {
				t.Fatalf("after a change at home the cell has %+v, %v", k, err)
			}
			_, second, err := home.Rotate(t.Context(), id, 0)
			if err != nil {
				t.Fatal(err)
			}
			exchange()
			allow(t, cell, text, ErrExpired)
			allow(t, cell, second, nil)
			put(t, cell, hostile)
			exchange()
			if k, err := cell.Get(t.Context(), id); err != nil || k.Name != "changed" {
				t.Errorf("the copy of before was taken for a later one: %+v, %v", k, err)
			}
			if err := home.Revoke(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			exchange()
			put(t, cell, hostile)
			exchange()
			for _, s := range []*Service{home, cell} {
				allow(t, s, second, ErrRevoked)
			}
		})
	}
}

func TestRevocationsAndDeletionsHoldWhateverTheVersions(t *testing.T) {
	t.Parallel()
	home := openOn(t, pgtest.New(t))
	id, text := create(t, home, CreateParams{Scopes: []Scope{Admin}})
	live := copyOf(t, home, id)
	hostile := copyWith(t, live, map[string]string{"version": `9007199254740991`, "updated_at": inJSON(time.Now().Add(day - withinTests)), "name": `"~~~"`})
	revoked := copyWith(t, live, map[string]string{"revoked_at": inJSON(time.Now())})
	for name, ended := range map[string]json.RawMessage{
		"revoked":                                          revoked,
		"deleted":                                          json.RawMessage(fmt.Sprintf(`{"id":%q,"deleted":true}`, id)),
		"deleted with an absurd version":                   json.RawMessage(fmt.Sprintf(`{"id":%q,"deleted":true,"version":%s,"updated_at":"infinity"}`, id, maxInt8)),
		"revoked with an absurd version":                   copyWith(t, revoked, map[string]string{"version": maxInt8}),
		"revoked with a version below zero":                copyWith(t, revoked, map[string]string{"version": `-1`}),
		"revoked by a clock that is ahead":                 copyWith(t, revoked, map[string]string{"revoked_at": `"infinity"`, "updated_at": `"` + farFuture + `"`}),
		"revoked long ago":                                 copyWith(t, revoked, map[string]string{"revoked_at": `"0001-01-01T00:00:00Z"`, "created_at": `"-infinity"`}),
		"revoked beside the text of a rotation that stays": copyWith(t, revoked, map[string]string{"previous_until": `"infinity"`, "previous_hash": `"` + strings.Repeat("0a", 32) + `"`, "previous_verifier": `"` + strings.Repeat("0a", 32) + `"`}),
	} {
		for _, stored := range []string{`1`, maxInt8} {
			t.Run(name+" over "+stored, func(t *testing.T) {
				t.Parallel()
				db := pgtest.New(t)
				cell := cellOn(t, db)
				create(t, cell, CreateParams{Scopes: []Scope{Admin}})
				put(t, cell, hostile)
				run(t, db, `update agent.api_key set version = $1::text::int8 where id = $2`, stored, id)
				allow(t, cell, text, nil)
				want := ErrRevoked
				if strings.HasPrefix(name, "deleted") {
					want = ErrUnauthorized
				}
				if got := put(t, cell, ended); got[0] != CopyApplied {
					t.Errorf("the copy was %s", got[0])
				}
				allow(t, cell, text, want)
				put(t, cell, hostile, live)
				allow(t, cell, text, want)
				if got := pgtest.Query[bool](t, pgtest.Connect(t, db.URL), `select coalesce(bool_and(revoked_at between '2000-01-01' and now() + interval '1 day'), true) from agent.api_key where revoked_at is not null`); !got {
					t.Error("the time of the revocation is beyond its bounds")
				}
			})
		}
	}
}
