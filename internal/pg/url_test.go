package pg

import (
	"strings"
	"testing"
)

func TestParametersAreFoundInURLsAndKeywords(t *testing.T) {
	t.Parallel()
	type found struct {
		anyServer, hasExecMode bool
		maxConns               int
	}
	for text, want := range map[string]found{
		"postgres://u@h/d":                          {},
		"postgres://u@h/d?target_session_attrs=any": {anyServer: true},
		"postgres://u@h:1,i:2/d?pool_max_conns=3&target_session_attrs=read-write": {maxConns: 3},
		"postgresql://h?default_query_exec_mode=exec&pool_max_conns=3":            {hasExecMode: true, maxConns: 3},
		"host=h target_session_attrs = any":                                       {anyServer: true},
		"pool_max_conns=3 host=h default_query_exec_mode='exec'":                  {hasExecMode: true, maxConns: 3},
		`host=h password='it\'s pool_max_conns=3'`:                                {},
		`host=h password='it\'s target_session_attrs=any'`:                        {},
		"host=h target_session_attrs='any' port=1":                                {anyServer: true},
	} {
		e, err := parseURL(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := (found{e.anyServer, e.hasExecMode, e.maxConns}); got != want {
			t.Errorf("%s: %+v, want %+v", text, got, want)
		}
	}
}

func TestErrorsOfURLsShowNoPassword(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"host=h port=99999999 password = 'it`: s3cret'",
		"host=h port=99999999 password='it`: s3cret'",
		"host=h password=it`: s3cret port=1",
		"postgres://u:it`: s3cret@h:99999999/d",
		"postgres://u@h:99999999/d?password=it`: s3cret",
		"postgres://u@h/d?password=it`: s3cret&sslmode=it`: s3cret",
	} {
		if err := CheckURL(text); err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", text, err)
		}
	}
	if err := CheckURL("host=h port=99999999 password=it`:s3cret"); err == nil || !strings.HasSuffix(err.Error(), ": invalid port") {
		t.Errorf("the reason is not shown: %v", err)
	}
}
