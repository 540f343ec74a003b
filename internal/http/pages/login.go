package pages

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/queued/queued/client"
	"github.com/queued/queued/internal/failure"
	"github.com/queued/queued/internal/request"
	"github.com/queued/queued/internal/ui"
)

const (
	maxLogIn  = 32 << 10 // bytes of the form
	maxTarget = 8 << 10  // bytes of the path that a log-in leads to
)

// tokenOf returns the token of the session that a request has; empty: none.
func (h *Handler) tokenOf(r *http.Request) string {
	cookie, err := r.Cookie(request.SessionCookie(h.cfg.Cell))
	if err != nil {
		return ""
	}
	return cookie.Value
}

// setCookie has the browser keep the token of a session until it ends, or forget it: then it is empty.
func (h *Handler) setCookie(w http.ResponseWriter, token string, until time.Time) {
	seconds := -1
	if token != "" {
		seconds = max(60, int(time.Until(until).Seconds())) // the clock of the database, which ends it, may be another one
	}
	http.SetCookie(w, &http.Cookie{Name: request.SessionCookie(h.cfg.Cell), Value: token, Path: "/", MaxAge: seconds, HttpOnly: true, Secure: true, SameSite: http.SameSiteLaxMode})
}

// authenticate returns who makes a request; nil: somebody with all rights.
func (h *Handler) authenticate(r *http.Request) (Viewer, error) {
	if page := renderedFor(r); page != nil {
		return page.viewer, nil
	}
	if h.cfg.Door == nil {
		return nil, nil //nolint:nilnil // a nil Viewer has all rights
	}
	return h.cfg.Door.Look(r.Context(), h.tokenOf(r))
}

// admit is authenticate for a request that counts: for the metrics, the log, and the rate limit of the key. What a page reads through the API does not count again.
func (h *Handler) admit(r *http.Request) (Viewer, error) {
	if h.cfg.Door == nil || renderedFor(r) != nil {
		return h.authenticate(r)
	}
	viewer, err := h.cfg.Door.Admit(r, h.tokenOf(r))
	if limited, ok := errors.AsType[*RateLimitedError](err); ok {
		return nil, &client.Error{
			Status: http.StatusTooManyRequests, Title: "Rate limited", RetryAfter: limited.Retry,
			Detail: "The key that you are logged in with has made more requests than its rate limit allows. Nothing was done. Load the page again in " + ui.Duration(limited.Retry) + ".",
		}
	}
	return viewer, err
}

// isOpen reports whether nobody needs a key, and therefore a log-in.
func (h *Handler) isOpen(r *http.Request) bool {
	if h.cfg.Door == nil {
		return true
	}
	viewer, err := h.cfg.Door.Look(r.Context(), "")
	return err == nil && viewer.IsOpen()
}

// refuse answers a request of a viewer who has to log in, has made too many requests, or cannot be told from others now. What a form asks for is not done.
func (h *Handler) refuse(w http.ResponseWriter, r *http.Request, err error) {
	switch {
	case !isLoggedOut(err):
		if _, ok := errors.AsType[*client.Error](err); !ok {
			if r.Context().Err() == nil {
				h.cfg.Logger.Error().Func(failure.Of(err)).Msg("a log-in could not be checked")
			}
			err = unchecked("The log-in", "Nothing was done. Load the page again; the log-in goes on.")
		}
		h.showProblem(w, r, err)
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		h.showProblem(w, r, problem(http.StatusUnauthorized, "Not logged in", "The log-in has ended, and nothing was done. Log in, go back, and send the form again."))
	default:
		query := url.Values{"to": {strings.TrimPrefix(r.URL.RequestURI(), Prefix)}}
		if h.tokenOf(r) != "" {
			query.Set("did", endingOf(err))
			h.setCookie(w, "", time.Time{})
		}
		redirect(w, r, "login?"+query.Encode())
	}
}

// endingOf returns the notice that says why a log-in has ended.
func endingOf(err error) string {
	if errors.Is(err, ErrExpired) {
		return "key.expired"
	}
	return "session.ended" // as revoked keys end their sessions
}

// isLoggedOut reports whether an error of an authentication says that the viewer has to log in again.
func isLoggedOut(err error) bool {
	return errors.Is(err, ErrUnauthorized) || errors.Is(err, ErrExpired) || errors.Is(err, ErrRevoked)
}

// unchecked is the problem with a log-in that may be good.
func unchecked(what, next string) error {
	return &client.Error{
		Status: http.StatusServiceUnavailable, Title: "Database unavailable", RetryAfter: time.Second,
		Detail: what + " cannot be checked, because the database cannot be reached, or does not answer in time. " + next,
	}
}

var errNotKept = problem(http.StatusUnauthorized, "The browser did not keep the log-in",
	"Over plain HTTP, browsers keep a log-in for localhost at most. Open the server by its https:// address, or by http://localhost through a tunnel on this computer (Safari needs https:// there, too). "+
		"If the address is right, allow cookies for it.")

// showLogIn is the page of the log-in. Whoever needs none is led on.
func (h *Handler) showLogIn(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	to := targetOf(query.Get("to"))
	switch _, err := h.authenticate(r); {
	case err == nil:
		redirect(w, r, to)
	case !isLoggedOut(err):
		h.refuse(w, r, err)
	case !query.Has("kept"):
		h.writeLogIn(w, r, to, query, nil)
	case h.tokenOf(r) == "": // a log-in that was right leads here
		h.writeLogIn(w, r, to, nil, errNotKept)
	default:
		h.writeLogIn(w, r, to, url.Values{"did": {endingOf(err)}}, nil)
	}
}

// writeLogIn writes the page of the log-in, with a notice, or why the one before failed; nil: it did not. It never has what was entered.
func (h *Handler) writeLogIn(w http.ResponseWriter, r *http.Request, to string, did url.Values, failed error) {
	p := h.pageOfNobody(r)
	p.Name, p.Title, p.View, p.Notice = "login", "Log in", ui.LogIn{To: to}, notice(did)
	status := http.StatusOK
	if failed != nil {
		p.Problem = problemOf(failed)
		status = p.Problem.Status
	}
	h.write(w, p, status)
}

// logIn begins a session with a key, and leads to the page of the log-in, which leads on if the browser has kept the session.
func (h *Handler) logIn(w http.ResponseWriter, r *http.Request) {
	if h.isOpen(r) {
		redirect(w, r, "")
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxLogIn)
	if err := r.ParseForm(); err != nil {
		h.writeLogIn(w, r, "", nil, unreadable(err))
		return
	}
	to := targetOf(r.PostForm.Get("to"))
	text := strings.TrimSpace(r.PostForm.Get("key"))
	if text == "" {
		h.writeLogIn(w, r, to, nil, problem(http.StatusBadRequest, "No key", "Enter the key."))
		return
	}
	token, until, err := h.cfg.Door.LogIn(r.Context(), text)
	switch {
	case err != nil:
		h.writeLogIn(w, r, to, nil, h.refusalOf(err))
	case token == "":
		redirect(w, r, to)
	default:
		h.endReplaced(r)
		h.setCookie(w, token, until)
		redirect(w, r, "login?"+url.Values{"kept": {""}, "to": {to}}.Encode())
	}
}

// endReplaced ends the session whose cookie the browser is about to forget for that of another one: nobody could log out of it any more. If it cannot be ended, it goes on until it
// expires.
func (h *Handler) endReplaced(r *http.Request) {
	token := h.tokenOf(r)
	if token == "" {
		return
	}
	if err := h.cfg.Door.LogOut(r.Context(), token); err != nil {
		h.cfg.Logger.Error().Func(failure.Of(err)).Msg("a log-in that another one replaces could not be ended")
	}
}

// refusalOf returns the problem with a key that is not let in.
func (h *Handler) refusalOf(err error) error {
	if limited, ok := errors.AsType[*RateLimitedError](err); ok {
		return &client.Error{
			Status: http.StatusTooManyRequests, Title: "Too many log-ins", RetryAfter: limited.Retry,
			Detail: "The key has logged in too often, or has made more requests than its rate limit allows. Log in again in some seconds.",
		}
	}
	if answer, ok := errors.AsType[*client.Error](err); ok {
		return answer
	}
	switch {
	case errors.Is(err, ErrExpired):
		return problem(http.StatusUnauthorized, "Key expired", "The key, or its text from before the latest rotation, has expired. Log in with another one.")
	case errors.Is(err, ErrRevoked):
		return problem(http.StatusUnauthorized, "Key revoked", "The key was revoked. Log in with another one.")
	case errors.Is(err, ErrUnauthorized):
		return problem(http.StatusUnauthorized, "No such key", "No key has this text. Check that it was copied in full.")
	case errors.Is(err, ErrLookUps):
		return &client.Error{
			Status: http.StatusServiceUnavailable, Title: "Server overloaded", RetryAfter: time.Second,
			Detail: "So many unknown keys were sent that this one was not looked up. It may be right: log in again in some seconds.",
		}
	}
	h.cfg.Logger.Error().Func(failure.Of(err)).Msg("a log-in failed")
	return unchecked("The key", "It may be right: log in again when the database is back.")
}

// logOut ends the session of a viewer.
func (h *Handler) logOut(w http.ResponseWriter, r *http.Request) {
	if h.isOpen(r) {
		redirect(w, r, "")
		return
	}
	if err := h.cfg.Door.LogOut(r.Context(), h.tokenOf(r)); err != nil {
		h.cfg.Logger.Error().Func(failure.Of(err)).Msg("a log-out failed")
		h.showProblem(w, r, &client.Error{
			Status: http.StatusServiceUnavailable, Title: "Not logged out", RetryAfter: time.Second,
			Detail: "The log-in goes on, because the database cannot be reached, or does not answer in time. Go back, and log out again.",
		})
		return
	}
	h.setCookie(w, "", time.Time{})
	redirect(w, r, "login?did=logout")
}

// targetOf returns the path under Prefix, with its query, that a log-in leads to: that of a link, if it is one, else empty. Whoever makes a link can lead to
// no other place.
func targetOf(link string) string {
	u, err := url.Parse(link)
	if err != nil || len(link) > maxTarget || u.IsAbs() || u.Host != "" || u.User != nil || strings.HasPrefix(u.Path, "/") || strings.ContainsRune(link+u.Path, '\\') {
		return ""
	}
	if slices.ContainsFunc(strings.Split(u.Path, "/"), func(segment string) bool { return segment == "." || segment == ".." }) {
		return ""
	}
	to := url.URL{Path: u.Path, RawPath: u.RawPath, RawQuery: u.RawQuery}
	return strings.TrimPrefix(to.String(), "./")
}
