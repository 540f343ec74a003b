package http

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/swaggest/swgui/v5/static"

	"github.com/queued/queued/api"
	"github.com/queued/queued/internal/http/pages"
)

// The page that renders the contract. All its files are in the program: it works without a network.
//
//go:embed docs
var docs embed.FS

// docsPolicy lets the page load and call nothing but this server.
const docsPolicy = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; " +
	"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// An asset is one file that is served as it is.
type asset struct {
	media   string
	etag    string
	content []byte
	gzipped bool // content is compressed
}

func newAsset(media string, content []byte, gzipped bool) asset {
	sum := sha256.Sum256(content)
	return asset{media: media, etag: hex.EncodeToString(sum[:8]), content: content, gzipped: gzipped}
}

func (a asset) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	content, etag := a.content, a.etag
	h := w.Header()
	if a.gzipped {
		h.Set("Vary", "Accept-Encoding")
		if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			h.Set("Content-Encoding", "gzip")
			etag += "-gzip"
		} else {
			content = gunzip(content)
		}
	}
	h.Set("Content-Type", a.media)
	h.Set("Etag", `"`+etag+`"`)
	h.Set("Cache-Control", "no-cache") // keep it, and ask whether it is still the same
	r.Header.Del("Range")              // these are small: all or nothing
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
}

func gunzip(compressed []byte) []byte {
	zr, err := gzip.NewReader(bytes.NewReader(compressed))
	if err != nil {
		panic(err) // embedded files are whole
	}
	content, err := io.ReadAll(zr)
	if err != nil {
		panic(err)
	}
	return content
}

var (
	// contract is api/openapi.yaml as it is served; the media type is RFC 9512's.
	contract = newAsset("application/yaml", api.OpenAPI, false)

	// docsPage is the page itself, docsAssets the files that it loads.
	docsPage   = newAsset("text/html; charset=utf-8", embedded(docs, "docs/index.html"), false)
	docsAssets = map[string]asset{
		"init.js":              newAsset("text/javascript; charset=utf-8", embedded(docs, "docs/init.js"), false),
		"favicon-32x32.png":    newAsset("image/png", embedded(static.FS, "favicon-32x32.png"), false),
		"swagger-ui.css":       newAsset("text/css; charset=utf-8", embedded(static.FS, "swagger-ui.css.gz"), true),
		"swagger-ui-bundle.js": newAsset("text/javascript; charset=utf-8", embedded(static.FS, "swagger-ui-bundle.js.gz"), true),
	}
)

func embedded(files embed.FS, name string) []byte {
	content, err := files.ReadFile(name)
	if err != nil {
		panic(err)
	}
	return content
}

func (s *Server) serveDocs(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Security-Policy", docsPolicy)
	docsPage.ServeHTTP(w, r)
}

func (s *Server) serveDocsAsset(w http.ResponseWriter, r *http.Request) {
	a, ok := docsAssets[r.PathValue("asset")]
	if !ok {
		fail(w, r, errNotFound)
		return
	}
	a.ServeHTTP(w, r)
}

// index tells programs that open the server's address where to find the pages and the documentation. Browsers are led to the pages; see servePages.
func (s *Server) index(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Vary", "Accept")
	respond(w, r, reply{body: indexResponse{Name: "queued", Version: s.version.Version, UI: pages.Prefix, Docs: "/docs", OpenAPI: "/openapi.yaml"}})
}

type indexResponse struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	UI      string `json:"ui"`
	Docs    string `json:"docs"`
	OpenAPI string `json:"openapi"`
}
