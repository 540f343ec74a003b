package bind

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/queued/queued/internal/http/problem"
)

// readBody returns the body of r, nil when it is empty or blank. It takes content types of JSON, of text, and of forms, which curl sends by
// default; decoding then shows whether it is JSON.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) (body []byte, err error) {
	switch {
	case r.ContentLength == 0:
		return nil, nil
	case r.ContentLength > limit:
		err = &http.MaxBytesError{Limit: limit}
	case r.ContentLength > 0:
		body = make([]byte, r.ContentLength)
		_, err = io.ReadFull(r.Body, body)
	default:
		body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	}
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		detail := fmt.Sprintf("The body must be at most %d bytes long.", limit)
		return nil, problem.New(problem.BodyTooLarge, detail).With("Connection", "close") // rather than read the rest of it
	}
	if err != nil {
		return nil, problem.New(problem.InvalidJSON, "The body did not arrive in full, or not in time.").With("Connection", "close")
	}
	if len(bytes.TrimSpace(body)) == 0 {
		return nil, nil
	}
	return body, checkMediaType(cmp.Or(r.Header.Get("Content-Type"), "application/json"), r.Header.Get("Content-Encoding"))
}

// checkMediaType makes sure that a body is uncompressed JSON, text or a form, in UTF-8.
func checkMediaType(given, coding string) error {
	if given == "application/json" && coding == "" {
		return nil
	}
	media, params, err := mime.ParseMediaType(given)
	var detail string
	switch charset := strings.ToLower(params["charset"]); {
	case coding != "" && !strings.EqualFold(coding, "identity"):
		detail = "The body must be sent without Content-Encoding."
	case err != nil, media != "application/json" && !strings.HasSuffix(media, "+json") && media != "text/plain" && media != "application/x-www-form-urlencoded":
		detail = "The body must be sent as application/json, not as " + Quote(given) + "."
	case charset != "" && charset != "utf-8" && charset != "us-ascii":
		detail = "The body must be in UTF-8, not in " + Quote(charset) + "."
	default:
		return nil
	}
	return problem.New(problem.UnsupportedMediaType, detail)
}
