package pg

import "testing"

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
