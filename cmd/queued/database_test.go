package main

import (
	"strings"
	"testing"

	"github.com/queued/queued/internal/pg"
)

func TestDatabaseIsDescribedWithoutItsPassword(t *testing.T) {
	t.Parallel()
	tests := []struct{ text, want string }{
		{"postgres://app:hunter2@db.example:5433/events?sslmode=disable", "postgres://app@db.example:5433/events"},
		{"postgresql://app:hun%2Fter2@[::1]/events?application_name=hunter2", "postgres://app@[::1]:5432/events"},
		{"host=db.example user=app password='hunter2 x' dbname=events", "postgres://app@db.example:5432/events"},
		{"host=/run/postgresql user=app password=hunter2 dbname=events", "host=/run/postgresql user=app dbname=events"},
	}
	for _, test := range tests {
		if _, err := parseDatabaseURL(test.text, nil); err != nil {
			t.Errorf("%s: %v", test.text, err)
		}
		if got := pg.DescribeURL(test.text); got != test.want {
			t.Errorf("%s is described as %q, want %q", test.text, got, test.want)
		}
	}
}

func TestWrongDatabaseURLIsRefusedWithoutItsPassword(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"postgres://u:hunter2@h:port/d",
		"postgres://u:hunter2@h/d?sslmode=hunter",
		"postgres://u:hun/hunter2@h/d",
		"postgres://u:hun#hunter2@h/d",
		"postgres://u:hun?connect_timeout=hunter2@h/d",
		"postgres://u:hun@hunter2@h/d",
		"postgres://u:%zzhunter2@h/d",
		"postgres://u:hun hunter2@h:x/d",
		"postgres://u:hunter2@[::1/d",
		"postgres//u:hunter2@h/d",
		"mysql://u:hunter2@h/d",
		"host=h password=x hunter2",
		"host=h password='hunter2",
		"host=h password=x hunter2=1 connect_timeout=never",
		"hunter2",
	} {
		_, err := parseDatabaseURL(text, nil)
		if err == nil {
			t.Errorf("%s is accepted", text)
		} else if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error shows the password: %v", text, err)
		}
	}
}

func FuzzPasswordIsNeverShown(f *testing.F) {
	for _, seed := range []string{"", "/", "?", "#", "%", ":", "@", " ", "'", "=", "&", "[", "\\", "\x00", "?sslmode="} {
		f.Add(seed, "")
		f.Add("", seed)
	}
	f.Fuzz(func(t *testing.T, before, after string) {
		const mark = "hunter2"
		text := "postgres://u:" + before + mark + after + "@h/d"
		shown := pg.DescribeURL(text)
		if _, err := parseDatabaseURL(text, nil); err != nil {
			shown = err.Error()
		}
		if strings.Contains(shown, mark) {
			t.Errorf("%q is shown as %q", text, shown)
		}
		if shown := redact("connecting to " + text); strings.Contains(shown, mark) && !strings.ContainsAny(before+after, " \t\r\n\v\f") {
			t.Errorf("%q is redacted to %q", text, shown)
		}
	})
}

func TestRedactRemovesPasswordsOnly(t *testing.T) {
	t.Parallel()
	tests := []struct{ text, want string }{
		{"connecting to postgres://u:hunter2@h/d: refused", "connecting to postgres://xxxxx@h/d: refused"},
		{"host=h PASSWORD = 'hunter2 \\' x' user=u", "host=h PASSWORD = xxxxx user=u"},
		{"host=h password=hunter2 user=u", "host=h password=xxxxx user=u"},
		{`password authentication failed for user "app"`, `password authentication failed for user "app"`},
		{"see http://127.0.0.1:8080/docs", "see http://127.0.0.1:8080/docs"},
	}
	for _, test := range tests {
		if got := redact(test.text); got != test.want {
			t.Errorf("redact(%q) = %q, want %q", test.text, got, test.want)
		}
	}
}
