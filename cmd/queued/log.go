package main

import (
	"io"
	"os"
	"strings"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/rs/zerolog"
)

// forPeople says whether log lines on w are written for people rather than programs.
func (s *logSettings) forPeople(w io.Writer) bool {
	switch s.LogFormat {
	case "console":
		return true
	case "json":
		return false
	default:
		return isTerminal(w)
	}
}

// logger writes to w, in UTC and to the millisecond, whatever of these settings asks for.
func (s *logSettings) logger(w io.Writer, now func() time.Time) zerolog.Logger {
	level, err := zerolog.ParseLevel(s.LogLevel)
	if err != nil {
		level = zerolog.InfoLevel
	}
	if s.forPeople(w) {
		w = zerolog.ConsoleWriter{
			Out:     w,
			NoColor: !isTerminal(w),
			FormatTimestamp: func(stamp any) string {
				text, _ := stamp.(string)
				return strings.TrimSuffix(strings.Replace(text, "T", " ", 1), "Z")
			},
		}
	}
	stamp := zerolog.HookFunc(func(e *zerolog.Event, _ zerolog.Level, _ string) {
		e.Str(zerolog.TimestampFieldName, now().UTC().Format("2006-01-02T15:04:05.000Z"))
	})
	return zerolog.New(w).Level(level).Hook(stamp)
}

func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && isatty.IsTerminal(file.Fd())
}
