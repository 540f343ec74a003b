package http

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/http/pages"
)

// A pageDoor lets viewers of pages in whom package access lets in.
type pageDoor struct{ s *Server }

// logInRetry is after how long a key that has logged in too often may do so again: access lets it log in 20 times a minute.
const logInRetry = 3 * time.Second

// Admit implements pages.Door.
func (d pageDoor) Admit(r *http.Request, token string) (pages.Viewer, error) {
	grant, err := d.s.access.AuthenticateSession(r.Context(), token)
	if err != nil {
		return nil, d.count(err)
	}
	l := logOf(r)
	l.grant = grant
	if grant.KeyID != "" {
		l.add("key", grant.KeyID)
	}
	if limit, ok := grant.Take(); !ok {
		_ = d.count(access.ErrRateLimited)
		return nil, &pages.RateLimitedError{Retry: limit.Retry}
	}
	return pageViewer{grant}, d.count(nil)
}

// Look implements pages.Door.
func (d pageDoor) Look(ctx context.Context, token string) (pages.Viewer, error) {
	grant, err := d.s.access.AuthenticateSession(ctx, token)
	if err != nil {
		return nil, doorError(err)
	}
	return pageViewer{grant}, nil
}

// LogIn implements pages.Door.
func (d pageDoor) LogIn(ctx context.Context, key string) (token string, until time.Time, err error) {
	token, until, err = d.s.access.CreateSession(ctx, key)
	return token, until, d.count(err)
}

// LogOut implements pages.Door.
func (d pageDoor) LogOut(ctx context.Context, token string) error {
	return doorError(d.s.access.EndSession(ctx, token))
}

// count counts a request by what became of its key, and returns the error as pages know it.
func (d pageDoor) count(err error) error {
	if err == nil {
		d.s.metrics.accepted.Inc()
	} else {
		d.s.metrics.keys.WithLabelValues(refusalOf(err)).Inc()
	}
	return doorError(err)
}

// doorError returns an error of package access as pages know it.
func doorError(err error) error {
	switch {
	case errors.Is(err, access.ErrUnauthorized):
		return pages.ErrUnauthorized
	case errors.Is(err, access.ErrExpired):
		return pages.ErrExpired
	case errors.Is(err, access.ErrRevoked):
		return pages.ErrRevoked
	case errors.Is(err, access.ErrRateLimited):
		return &pages.RateLimitedError{Retry: logInRetry}
	case errors.Is(err, access.ErrLookUps):
		return errors.Join(pages.ErrLookUps, err)
	}
	return err
}

// A pageViewer is a viewer of pages with the rights of a key.
type pageViewer struct{ grant *access.Grant }

// KeyID implements pages.Viewer.
func (v pageViewer) KeyID() string { return v.grant.KeyID }

// KeyName implements pages.Viewer.
func (v pageViewer) KeyName() string { return v.grant.KeyName }

// IsOpen implements pages.Viewer.
func (v pageViewer) IsOpen() bool { return v.grant.IsOpen }

// Has implements pages.Viewer.
func (v pageViewer) Has(scope string) bool { return v.grant.Has(access.Scope(scope)) }

// Watch implements pages.Viewer.
func (v pageViewer) Watch(ctx context.Context) (watched context.Context, cancel context.CancelFunc) {
	return v.grant.Watch(ctx)
}

// Rights implements pages.Viewer.
func (v pageViewer) Rights() any { return v.grant.OfKey() }
