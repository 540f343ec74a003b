package http

import (
	"bytes"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strings"
)

// readBody returns the body of r, nil when it is empty or blank. It takes what says it is JSON and,
// since curl says so unasked, what says it is a form or text; decoding then shows whether it is JSON.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	if r.ContentLength > limit {
		return nil, bodyIsTooLarge(limit)
	}
	var body bytes.Buffer
	body.Grow(int(max(0, r.ContentLength) + bytes.MinRead))
	if _, err := body.ReadFrom(http.MaxBytesReader(w, r.Body, limit)); err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			return nil, bodyIsTooLarge(limit)
		}
		return nil, &problem{kind: invalidJSON, detail: "The body did not arrive in full, or not in time.", header: http.Header{"Connection": {"close"}}}
	}
	if len(bytes.TrimSpace(body.Bytes())) == 0 {
		return nil, nil
	}
	return body.Bytes(), checkMediaType(r.Header)
}

func bodyIsTooLarge(limit int64) error {
	return &problem{
		kind:   bodyTooLarge,
		detail: fmt.Sprintf("The body may have %d bytes at most.", limit),
		header: http.Header{"Connection": {"close"}}, // rather than read the rest of it
	}
}

func checkMediaType(h http.Header) error {
	if coding := h.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		return &problem{kind: unsupportedMediaType, detail: "The body must be sent as it is, without Content-Encoding."}
	}
	given := h.Get("Content-Type")
	if given == "" {
		return nil
	}
	media, params, err := mime.ParseMediaType(given)
	if err != nil {
		media = ""
	}
	switch {
	case media == "application/json", strings.HasSuffix(media, "+json"), media == "text/plain", media == "application/x-www-form-urlencoded":
	default:
		return &problem{kind: unsupportedMediaType, detail: "The body must be JSON, sent as application/json, not as " + quote(given) + "."}
	}
	switch charset := strings.ToLower(params["charset"]); charset {
	case "", "utf-8", "us-ascii":
		return nil
	default:
		return &problem{kind: unsupportedMediaType, detail: "The body must be in UTF-8, not in " + quote(charset) + "."}
	}
}
