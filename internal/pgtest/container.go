package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/ory/dockertest/v3"
	"github.com/ory/dockertest/v3/docker"
)

const (
	imageName = "queued-postgres"
	imageTag  = "17"
	imageUser = "999:999" // of the image's user postgres

	// lifetime is when a container ends whose tests were killed before they stopped it. A measurement on every
	// workload takes longer than any test.
	lifetime = 4 * time.Hour
)

func startTimescale(ctx context.Context, kept durability) (*Server, error) {
	pool, err := dockertest.NewPool("")
	if err != nil {
		return nil, fmt.Errorf("docker: %w", err)
	}
	if transport, ok := pool.Client.HTTPClient.Transport.(*http.Transport); ok {
		// An idle connection would leak a goroutine.
		transport.DisableKeepAlives = true
	}
	container, err := runContainer(ctx, pool, kept)
	if err != nil {
		return nil, err
	}
	s := &Server{
		URL:     containerURL(container.GetHostPort("5432/tcp")),
		Flavour: Timescale,
		stop:    func(context.Context) error { return pool.Purge(container) },
	}
	if err := waitUntilReady(ctx, s, pool, container); err != nil {
		return nil, errors.Join(err, s.Stop(context.WithoutCancel(ctx)))
	}
	s.URL = directURL(ctx, s.URL, container)
	return s, nil
}

// runContainer starts the server the way docker-compose.yml does, so that the tests hold the image to that too.
func runContainer(ctx context.Context, pool *dockertest.Pool, kept durability) (*dockertest.Resource, error) {
	if err := pool.Client.PingWithContext(ctx); err != nil {
		return nil, fmt.Errorf("docker cannot be reached at %s, which the %s flavour needs: %w", pool.Client.Endpoint(), Timescale, err)
	}
	image := imageName + ":" + imageTag
	switch _, err := pool.Client.InspectImage(image); {
	case errors.Is(err, docker.ErrNoSuchImage):
		return nil, fmt.Errorf("the image %s is missing: run `build/images postgres`", image)
	case err != nil:
		return nil, fmt.Errorf("docker image %s: %w", image, err)
	}
	container, err := pool.RunWithOptions(&dockertest.RunOptions{
		Repository:  imageName,
		Tag:         imageTag,
		Env:         []string{"POSTGRES_PASSWORD=" + containerPassword},
		Cmd:         arguments(kept.settings("timescaledb")),
		Labels:      map[string]string{"queued.pgtest": fmt.Sprint(os.Getpid())},
		SecurityOpt: []string{"no-new-privileges"},
		PortBindings: map[docker.Port][]docker.PortBinding{
			"5432/tcp": {{HostIP: "127.0.0.1"}}, // any free port
		},
	}, func(host *docker.HostConfig) {
		host.AutoRemove = true // the volume too
		host.PublishAllPorts = false
		host.ReadonlyRootfs = true
		host.CapDrop = []string{"ALL"}
		uid, gid, _ := strings.Cut(imageUser, ":")
		host.Tmpfs = map[string]string{
			"/tmp":            "",
			"/run/postgresql": fmt.Sprintf("uid=%s,gid=%s,mode=0775", uid, gid),
		}
		if kept == disposable {
			host.Tmpfs["/var/lib/postgresql/data"] = fmt.Sprintf("uid=%s,gid=%s,mode=0700", uid, gid)
		}
		host.ShmSize = 256 << 20
	})
	if err != nil {
		return nil, fmt.Errorf("starting a container of %s: %w", image, err)
	}
	// This is a request to Docker that stays open, and that Docker carries out without us.
	if err := container.Expire(uint(lifetime.Seconds())); err != nil {
		return nil, errors.Join(err, pool.Purge(container))
	}
	return container, nil
}

// containerPassword guards nothing: the port is on the loopback interface, the data are made up.
const containerPassword = "pgtest"

func containerURL(address string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword("postgres", containerPassword),
		Host:     address,
		Path:     "/postgres",
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// directURL returns the URL of a container by its own address, where that can be reached, as it can on Linux with an engine that runs on the same machine, and
// otherwise published. What goes to a published port is copied by a process of Docker's.
func directURL(ctx context.Context, published string, container *dockertest.Resource) string {
	address := container.Container.NetworkSettings.IPAddress
	if address == "" {
		return published
	}
	direct := containerURL(net.JoinHostPort(address, "5432"))
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, direct)
	if err != nil {
		return published
	}
	_ = conn.Close(ctx)
	return direct
}

// waitUntilReady returns when the server answers, or an error that holds its log.
func waitUntilReady(ctx context.Context, s *Server, pool *dockertest.Pool, container *dockertest.Resource) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		refused := s.admin(ctx, func(conn *pgx.Conn) error { return conn.Ping(ctx) })
		if refused == nil {
			return nil
		}
		state, err := pool.Client.InspectContainer(container.Container.ID)
		if err != nil {
			return fmt.Errorf("the container of the %s flavour has been removed: %w", Timescale, err)
		}
		select {
		case <-tick.C:
			if state.State.Running {
				continue
			}
			return fmt.Errorf("the container of the %s flavour has ended with %d; its log:\n%s", Timescale, state.State.ExitCode, logs(pool, container))
		case <-ctx.Done():
			return fmt.Errorf("the container of the %s flavour does not answer: %w; its log:\n%s", Timescale, refused, logs(pool, container))
		}
	}
}

func logs(pool *dockertest.Pool, container *dockertest.Resource) string {
	var out strings.Builder
	err := pool.Client.Logs(docker.LogsOptions{
		Container: container.Container.ID, OutputStream: &out, ErrorStream: &out, Stdout: true, Stderr: true, Tail: "40",
	})
	if err != nil {
		return err.Error()
	}
	return out.String()
}
