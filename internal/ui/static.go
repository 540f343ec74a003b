package ui

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"
)

//go:embed static
var staticFiles embed.FS

// An Asset is a file that pages load.
type Asset struct {
	Media   string
	Content []byte
}

// assets are the files by their names with a hash of their content, under which browsers may keep them for good, and those names by the names of the files. They are read for the first page, as their media
// types come from files of the system.
var assets = sync.OnceValues(loadAssets)

func loadAssets() (byHashed map[string]Asset, hashedNames map[string]string) {
	files, err := fs.Glob(staticFiles, "static/*")
	if err != nil {
		panic(err) // the pattern is a constant
	}
	byName, names := make(map[string]Asset), make(map[string]string)
	for _, file := range files {
		content, err := staticFiles.ReadFile(file)
		if err != nil {
			panic(err) // embedded files are whole
		}
		sum := sha256.Sum256(content)
		base, extension := path.Base(file), path.Ext(file)
		hashed := strings.TrimSuffix(base, extension) + "-" + hex.EncodeToString(sum[:6]) + extension
		byName[hashed] = Asset{mime.TypeByExtension(extension), content}
		names[base] = hashed
	}
	return byName, names
}

// assetPath returns the path under /ui/ of a file that pages load. It panics for a name that there is not: templates have constants.
func assetPath(name string) string {
	_, names := assets()
	hashed, ok := names[name]
	if !ok {
		panic("there is no asset " + name)
	}
	return "static/" + hashed
}

// ServeAsset answers a request for a file that pages load, by the name that pages have for it. It returns false when there is none.
func ServeAsset(w http.ResponseWriter, r *http.Request, name string) bool {
	files, _ := assets()
	a, ok := files[name]
	if !ok {
		return false
	}
	w.Header().Set("Content-Type", a.Media)
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(a.Content))
	return true
}
