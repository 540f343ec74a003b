package request

import (
	"errors"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// Prefers reports whether a request names a media type, in lower case, and would rather have it than JSON.
func Prefers(r *http.Request, mediaType string) bool {
	given := r.Header["Accept"]
	if len(given) == 0 || !strings.Contains(strings.ToLower(strings.Join(given, ",")), mediaType) {
		return false
	}
	accept := strings.Join(given, ",")
	weight := Acceptance(accept, mediaType)
	return weight > 0 && weight >= Acceptance(accept, "application/json")
}

// ExportFormat returns the format of an export that a request asks for by name, its parameter format, or else by its Accept: csv or ndjson; empty: it asks for a page.
func ExportFormat(r *http.Request, name string) string {
	if name != "" {
		return name
	}
	isCSV, isLines := Prefers(r, "text/csv"), Prefers(r, "application/x-ndjson")
	if isCSV && isLines {
		accept := strings.Join(r.Header["Accept"], ",")
		isCSV = Acceptance(accept, "text/csv") > Acceptance(accept, "application/x-ndjson")
	}
	switch {
	case isCSV:
		return "csv"
	case isLines:
		return "ndjson"
	}
	return ""
}

// Acceptance returns the weight that an Accept gives to a media type (RFC 9110, section 12.5.1): that of the most specific range; 0: none.
func Acceptance(accept, mediaType string) (weight float64) {
	kind, _, _ := strings.Cut(mediaType, "/")
	ranges := []string{"*/*", kind + "/*", mediaType}
	best := -1
	for part := range strings.SplitSeq(accept, ",") {
		name, params, err := mime.ParseMediaType(part)
		if err != nil && !errors.Is(err, mime.ErrInvalidMediaParameter) {
			continue
		}
		specific := slices.Index(ranges, name)
		if specific < 0 || specific < best {
			continue
		}
		best, weight = specific, 1
		if q, err := strconv.ParseFloat(params["q"], 64); err == nil {
			weight = q
		}
	}
	return weight
}
