package http

import (
	"context"
	"errors"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/queue"
	"github.com/queued/queued/internal/request"
)

type noRequest struct{}

type healthResponse struct {
	Status string `json:"status"`
	Detail string `json:"detail,omitzero"` // the parts that do not run although calls are answered
}

// backgroundDetails say why a process does nothing by itself.
var backgroundDetails = map[queue.Background]string{
	queue.BackgroundSuspended: "Pushes, schedules and deliveries of subscriptions are suspended: the database is a copy of another one. Run \"queued adopt\" if it takes that one's place.",
	queue.BackgroundOff:       "This process pushes nothing, fires no schedules and delivers no subscriptions, because QUEUED_BACKGROUND is off.",
}

// livez reports that the process runs. It does not look at the database: a restart of this process would not repair that.
func (s *Server) livez(w http.ResponseWriter, r *http.Request) {
	respond(w, r, reply{body: healthResponse{Status: "ok"}})
}

// readyTime bounds the look at the database: probes have short timeouts of their own.
const readyTime = 3 * time.Second

// readyz reports whether calls can be answered.
func (s *Server) readyz(r *http.Request, _ noRequest) (reply, error) {
	if s.draining.Load() {
		return reply{}, problem.New(problem.NotReady, "The server is shutting down.")
	}
	ctx, cancel := context.WithTimeout(r.Context(), readyTime)
	defer cancel()
	err := s.svc.CheckReady(ctx)
	switch {
	case err == nil:
		return reply{body: healthResponse{Status: "ok", Detail: backgroundDetails[s.svc.Server().Background]}}, nil
	case errors.Is(err, queue.ErrNotSynchronous):
		logOf(r).err = err
		return reply{}, problem.New(problem.NotReady, "The database's commits wait for no synchronous standby, which QUEUED_REQUIRE_SYNC requires.")
	case errors.Is(err, queue.ErrOutdated):
		logOf(r).err = err
		return reply{}, problem.New(problem.NotReady, outdated)
	case errors.Is(err, queue.ErrUnavailable):
		return reply{}, err
	case errors.Is(err, context.DeadlineExceeded):
		return reply{}, problem.New(problem.DatabaseUnavailable, "The database does not answer.")
	default:
		logOf(r).err = err
		return reply{}, problem.New(problem.NotReady, "The database is not as this version needs it; the log says why.")
	}
}

const outdated = "The database has been migrated to a version that this server cannot run on. Call a server of the new version."

var errOutdated = problem.New(problem.DatabaseUnavailable, outdated).With("Retry-After", "1")

// checkOutdated answers every call that may use the database 503 once the schema has moved beyond this program.
func (s *Server) checkOutdated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.svc.IsOutdated() && !request.IsHealth(r.URL.Path) && r.URL.Path != "/metrics" && r.URL.Path != "/version" {
			fail(w, r, errOutdated)
			return
		}
		next.ServeHTTP(w, r)
	})
}

type versionResponse struct {
	Version string `json:"version"`
	Go      string `json:"go"`
	Commit  string `json:"commit,omitzero"` // not recorded in every build

	Background queue.Background `json:"background"`
}

// versionOf gathers the known facts of the running build.
func versionOf(version string) versionResponse {
	v := versionResponse{Version: version}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	v.Go = strings.TrimPrefix(info.GoVersion, "go")
	if v.Version == "" {
		v.Version = info.Main.Version
	}
	modified := ""
	for _, setting := range info.Settings {
		switch setting.Key {
		case "vcs.revision":
			v.Commit = setting.Value
		case "vcs.modified":
			if setting.Value == "true" {
				modified = "+modified"
			}
		}
	}
	if v.Commit != "" {
		v.Commit += modified
	}
	return v
}

func (s *Server) showVersion(w http.ResponseWriter, r *http.Request) {
	version := s.version
	version.Background = s.svc.Server().Background
	respond(w, r, reply{body: version})
}
