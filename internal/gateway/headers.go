package gateway

import (
	"net/http"
	"slices"
	"strings"
)

// connectionFields are fields of a header that are for one connection alone, besides those that Connection names (RFC 9110, 7.6.1).
var connectionFields = []string{
	"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

// originFields tell whether a browser makes a request for a page of another origin. Naming them in Connection does not take them away.
var originFields = []string{"Origin", "Sec-Fetch-Site"}

// dropConnectionFields removes the fields that are for one connection alone. Nothing is added to a header before: else whoever sent it could name that, too.
func dropConnectionFields(header http.Header) {
	for _, line := range header["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			if name = http.CanonicalHeaderKey(strings.TrimSpace(name)); !slices.Contains(originFields, name) {
				delete(header, name)
			}
		}
	}
	for _, name := range connectionFields {
		delete(header, name)
	}
}

// admitHeader removes from a request what nobody may have the gateway pass on. Trailers come after the body, which is passed on as a whole: a proxy in front of a cell might add them to the header.
func admitHeader(r *http.Request) {
	dropConnectionFields(r.Header)
	r.Trailer = nil
}

// callerHeader returns the fields that say who makes a request, for calls of the gateway's own in the name of that caller.
func callerHeader(r *http.Request) http.Header {
	header := http.Header{}
	if values := r.Header["Authorization"]; len(values) > 0 {
		header["Authorization"] = values
	}
	return header
}
