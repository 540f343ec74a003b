//go:build unix

package embedded

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/rs/zerolog"
)

// fakeInstallation makes a bin directory whose postgres reports a version.
func fakeInstallation(t *testing.T, dir, version string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\necho 'postgres (PostgreSQL) %s'\n", version)
	for _, name := range []string{"initdb", "postgres", "pg_ctl"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	waitUntilWritten(dir)
}

// noLocations returns a machine without PostgreSQL and a repository that has none.
func noLocations(t *testing.T) locations {
	t.Helper()
	repository := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(repository.Close)
	return locations{binDirs: []string{}, cache: filepath.Join(newDir(t), "cache"), repository: repository.URL, checksums: anyChecksums(t)}
}

// anyChecksums has a checksum for everything that could be fetched.
func anyChecksums(t *testing.T) map[string]string {
	t.Helper()
	known := make(map[string]string)
	for _, version := range fetchVersions {
		known[platform(t.Context())+"-"+version] = strings.Repeat("0", 64)
	}
	return known
}

func TestNewestProgramsAreChosen(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	for place, version := range map[string]string{
		"a": "9.6.24", "b": "13.22", "c": "14.19 (Debian 14.19-1)", "d": "17.2", "e": "17.10", "f": "18beta1", "g": "something else",
	} {
		fakeInstallation(t, filepath.Join(dir, place), version)
	}
	client := filepath.Join(dir, "client")
	fakeInstallation(t, client, "19.1")
	if err := os.Remove(filepath.Join(client, "initdb")); err != nil {
		t.Fatal(err)
	}
	a, err := accountFor(dataDir(dir))
	if err != nil {
		t.Fatal(err)
	}
	m := noLocations(t)
	m.binDirs = []string{filepath.Join(dir, "*")}
	for major, want := range map[int]string{0: "f", 17: "e", 14: "c"} {
		p, err := m.find(t.Context(), a, major, "", zerolog.Nop())
		if err != nil || filepath.Base(p.binDir) != want {
			t.Errorf("for %d: %v, %v", major, p, err)
		}
	}
	for _, major := range []int{13, 16, 19} {
		if p, err := m.find(t.Context(), a, major, "", zerolog.Nop()); err == nil {
			t.Errorf("for %d: %v", major, p)
		}
	}
}

func TestPostgresOfTheMachineIsFound(t *testing.T) {
	t.Parallel()
	if dirs := (locations{}).installed(t.Context()); len(dirs) == 0 {
		t.Error("none was found")
	}
}

func TestWrongMajorIsExplained(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	if err := os.MkdirAll(filepath.Join(dir, "data", "pg"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "data", "pg", "PG_VERSION"), []byte("18\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	fakeInstallation(t, filepath.Join(dir, "bin"), "17.2")
	cfg := noFsync(filepath.Join(dir, "data"))
	cfg.locations = noLocations(t)
	cfg.locations.binDirs = []string{filepath.Join(dir, "bin")}
	_, err := Start(t.Context(), cfg)
	mustSay(t, err, filepath.Join(dir, "data", "pg"), "made by PostgreSQL 18", "17.2 ("+filepath.Join(dir, "bin"),
		"fetching PostgreSQL 18", "apt-get install postgresql-18", "QUEUED_DATABASE_URL", "QUEUED_DATA_DIR")
}

func TestNoBinariesTellsWhatToDo(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(newDir(t), "data")
	cfg := noFsync(dir)
	cfg.locations = noLocations(t)
	_, err := Start(t.Context(), cfg)
	mustSay(t, err, "PostgreSQL 14 or newer", "apt-get install postgresql", "QUEUED_DATABASE_URL", cfg.locations.repository)
	if exists(dir) {
		t.Error("the data directory was made")
	}
}

func TestTooOldOrClosedProgramsAreNamed(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	fakeInstallation(t, filepath.Join(dir, "old"), "13.4")
	fakeInstallation(t, filepath.Join(dir, "broken"), "13.4")
	if err := os.WriteFile(filepath.Join(dir, "broken", "postgres"), []byte("#!/bin/sh\nexit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	waitUntilWritten(dir)
	words := []string{"13.4 (" + filepath.Join(dir, "old"), filepath.Join(dir, "broken"), "exit status 3"}
	if os.Geteuid() == 0 {
		closed := filepath.Join(dir, "closed")
		fakeInstallation(t, closed, "17.1")
		if err := os.Chmod(closed, 0o700); err != nil {
			t.Fatal(err)
		}
		words = append(words, closed, "may not run it")
	}
	cfg := noFsync(filepath.Join(dir, "data"))
	cfg.locations = noLocations(t)
	cfg.locations.binDirs = []string{filepath.Join(dir, "*")}
	_, err := Start(t.Context(), cfg)
	mustSay(t, err, words...)
}

// repository serves this machine's PostgreSQL the way Maven Central serves others.
type repository struct {
	*httptest.Server
	version   string
	checksum  string // of the archive
	downloads atomic.Int32
}

func newRepository(t *testing.T, jar []byte, version string) *repository {
	t.Helper()
	r := &repository{version: version, checksum: fmt.Sprintf("%x", sha256.Sum256(jar))}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch {
		case !strings.HasPrefix(req.URL.Path, "/io/zonky/test/postgres/embedded-postgres-binaries-"+platform(req.Context())+"/"+version+"/"):
			http.NotFound(w, req)
		case strings.HasSuffix(req.URL.Path, "/embedded-postgres-binaries-"+platform(req.Context())+"-"+version+".jar"):
			r.downloads.Add(1)
			_, _ = w.Write(jar)
		default:
			http.NotFound(w, req)
		}
	}))
	t.Cleanup(r.Close)
	return r
}

// locations returns a machine without PostgreSQL that can fetch from the repository.
func (r *repository) locations(t *testing.T) locations {
	t.Helper()
	return locations{
		binDirs:    []string{},
		cache:      filepath.Join(newDir(t), "cache"),
		repository: r.URL,
		versions:   []string{r.version},
		checksums:  map[string]string{platform(t.Context()) + "-" + r.version: r.checksum},
	}
}

// localArchive returns an archive of the machine's server, and its version as the repository writes it.
func localArchive(t *testing.T) ([]byte, string, installation) {
	t.Helper()
	a, err := accountFor(dataDir(newDir(t)))
	if err != nil {
		t.Fatal(err)
	}
	found, _, err := usable(t.Context(), a, (locations{}).installed(t.Context()))
	if err != nil || len(found) == 0 {
		t.Fatalf("no PostgreSQL on this machine: %v", err)
	}
	files := map[string]string{}
	for _, name := range []string{"initdb", "postgres", "pg_ctl"} {
		// A script that runs the real program: a copy would look for its libraries beside itself.
		files["bin/"+name] = "#!/bin/sh\nexec '" + found[0].program(name) + "' \"$@\"\n"
	}
	version := fmt.Sprintf("%d.%d.0", found[0].major, found[0].minor)
	return pack(t, files), version, found[0]
}

func TestFetchedBinariesRunTheServer(t *testing.T) {
	t.Parallel()
	jar, version, _ := localArchive(t)
	repository := newRepository(t, jar, version)
	cfg := noFsync(newDir(t))
	cfg.locations = repository.locations(t)
	server := start(t, cfg)
	run(t, server.URL(), "create table kept as select 42 as n")
	if !strings.HasPrefix(server.process.cmd.Path, cfg.locations.cache) {
		t.Errorf("it runs %s", server.process.cmd.Path)
	}
	stop(t, server)

	// The next start needs the repository no more, and an existing cluster gets its own version.
	repository.Close()
	server = start(t, cfg)
	if got := query(t, server.URL(), "select n::text from kept"); got != "42" {
		t.Errorf("got %s", got)
	}
	if n := repository.downloads.Load(); n != 1 {
		t.Errorf("it was fetched %d times", n)
	}
	for _, left := range entries(t, cfg.locations.cache+"/*") {
		if name := filepath.Base(left); name != "lock" && name != "postgres-"+version {
			t.Errorf("%s is left", left)
		}
	}
}

func TestFetchedBinariesMustBeOfTheClustersVersion(t *testing.T) {
	t.Parallel()
	jar, _, own := localArchive(t)
	repository := newRepository(t, jar, "16.9.0")
	dir := newDir(t)
	if err := errors.Join(os.Mkdir(dir+"/pg", 0o700), os.WriteFile(dir+"/pg/PG_VERSION", []byte("16\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if own.major == 16 {
		t.Skip("the machine's PostgreSQL is of the version that is to be another one")
	}
	cfg := noFsync(dir)
	cfg.locations = repository.locations(t)
	_, err := Start(t.Context(), cfg)
	mustSay(t, err, "16.9.0", "the archive holds PostgreSQL "+own.version())
}

func TestConcurrentStartsFetchOnce(t *testing.T) {
	t.Parallel()
	jar, version, _ := localArchive(t)
	repository := newRepository(t, jar, version)
	m := repository.locations(t)
	done := make(chan error)
	for range 3 {
		dir := newCluster(t)
		go func() {
			cfg := noFsync(dir)
			cfg.locations = m
			server, err := Start(t.Context(), cfg)
			if err == nil {
				err = server.Stop(t.Context())
			}
			done <- err
		}()
	}
	for range 3 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if n := repository.downloads.Load(); n != 1 {
		t.Errorf("it was fetched %d times", n)
	}
}

func TestBadDownloadIsRefusedAndLeavesNothing(t *testing.T) {
	t.Parallel()
	jar, version, _ := localArchive(t)
	for name, body := range map[string][]byte{
		"no archive":        []byte("<html>log in to this network</html>"),
		"cut short":         jar[:len(jar)/2],
		"without a server":  pack(t, map[string]string{"bin/psql": "#!/bin/sh\n"}),
		"of something else": pack(t, map[string]string{"bin/initdb": "", "bin/postgres": "#!/bin/sh\nexit 1\n", "bin/pg_ctl": ""}),
	} {
		cfg := noFsync(filepath.Join(newDir(t), "data"))
		cfg.locations = newRepository(t, body, version).locations(t)
		_, err := Start(t.Context(), cfg)
		if err == nil {
			t.Fatal(name)
		}
		t.Log(name)
		mustSay(t, err, "fetching PostgreSQL", "QUEUED_DATABASE_URL")
		if exists(cfg.DataDir) {
			t.Error("the data directory was made")
		}
		if left := entries(t, cfg.locations.cache+"/fetch*"); len(left) > 0 {
			t.Errorf("%v is left", left)
		}
	}
}

func TestOnlyWhatHasItsChecksumInTheSourceIsFetched(t *testing.T) {
	t.Parallel()
	jar, version, _ := localArchive(t)
	right := fmt.Sprintf("%x", sha256.Sum256(jar))
	for name, test := range map[string]struct {
		checksums map[string]string
		downloads int32
		want      []string
	}{
		"another": {
			checksums: map[string]string{platform(t.Context()) + "-" + version: strings.Repeat("0", 64)}, downloads: 1,
			want: []string{"wrong checksum", right, strings.Repeat("0", 64), "fetching PostgreSQL " + version},
		},
		"of another platform": {
			checksums: map[string]string{"plan9-amd64-" + version: right},
			want:      []string{"knows no checksum", platform(t.Context())},
		},
		"none": {checksums: map[string]string{}, want: []string{"knows no checksum", "fetches nothing that it cannot check", "apt-get install postgresql"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			repository := newRepository(t, jar, version)
			cfg := noFsync(filepath.Join(newDir(t), "data"))
			cfg.locations = repository.locations(t)
			cfg.locations.checksums = test.checksums
			_, err := Start(t.Context(), cfg)
			mustSay(t, err, append(test.want, "QUEUED_DATABASE_URL")...)
			if n := repository.downloads.Load(); n != test.downloads {
				t.Errorf("%d downloads, want %d", n, test.downloads)
			}
			if left := entries(t, cfg.locations.cache+"/*"); len(left) > 1 { // the lock
				t.Errorf("%v is left", left)
			}
		})
	}
}

func TestInterruptedFetchLeavesNothing(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	released := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if strings.HasSuffix(req.URL.Path, ".jar") {
			w.Header().Set("Content-Length", "1000")
			_, _ = w.Write([]byte("the first bytes"))
			cancel()
			<-released
		}
	}))
	defer server.Close()
	defer close(released)
	cfg := noFsync(newDir(t))
	cfg.locations = locations{binDirs: []string{}, cache: newDir(t), repository: server.URL, checksums: anyChecksums(t)}
	if _, err := Start(ctx, cfg); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if left := entries(t, cfg.locations.cache+"/*"); len(left) != 1 { // the lock
		t.Errorf("%v is left", left)
	}
}

func TestNextFetchRemovesWhatAKilledOneLeft(t *testing.T) {
	t.Parallel()
	jar, version, _ := localArchive(t)
	cache := newDir(t)
	if err := os.MkdirAll(filepath.Join(cache, "fetch", "bin", "old"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := fetchTo(t.Context(), filepath.Join(cache, "target"), newRepository(t, jar, version).URL, version, fmt.Sprintf("%x", sha256.Sum256(jar))); err != nil {
		t.Fatal(err)
	}
	if left := entries(t, cache+"/fetch*"); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}

func TestUnpackedFilesAreReadableByEverybody(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(newDir(t), "unpacked")
	jar := pack(t, nil,
		tar.Header{Name: "./lib/", Typeflag: tar.TypeDir, Mode: 0o700},
		tar.Header{Name: "bin/postgres", Mode: 0o700},
		tar.Header{Name: "share/deep/sample", Mode: 0o600},
		tar.Header{Name: "bin/postmaster", Typeflag: tar.TypeSymlink, Linkname: "postgres"},
		tar.Header{Name: "bin/hard", Typeflag: tar.TypeLink, Linkname: "bin/postgres"},
	)
	if err := unpack(t.Context(), jar, dir); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]fs.FileMode{
		"": 0o755, "lib": 0o755, "bin": 0o755, "bin/postgres": 0o755, "bin/postmaster": 0o755, "bin/hard": 0o755,
		"share": 0o755, "share/deep": 0o755, "share/deep/sample": 0o644,
	} {
		if got := mode(t, filepath.Join(dir, path)); got != want {
			t.Errorf("%q has mode %s, want %s", path, got, want)
		}
	}
}

func TestNothingIsUnpackedOutsideTheDirectory(t *testing.T) {
	t.Parallel()
	for name, headers := range map[string][]tar.Header{
		"a path with ..":       {{Name: "../outside"}},
		"an absolute path":     {{Name: "/outside"}},
		"through a link":       {{Name: "link", Typeflag: tar.TypeSymlink, Linkname: ".."}, {Name: "link/outside"}},
		"a link as a file":     {{Name: "link", Typeflag: tar.TypeSymlink, Linkname: "../outside"}, {Name: "link"}},
		"a hard link to it":    {{Name: "link", Typeflag: tar.TypeLink, Linkname: "../target"}},
		"a device":             {{Name: "null", Typeflag: tar.TypeChar}},
		"a chmod through link": {{Name: "link", Typeflag: tar.TypeSymlink, Linkname: ".."}, {Name: "link/", Typeflag: tar.TypeDir}},
	} {
		parent := newDir(t)
		if err := os.WriteFile(filepath.Join(parent, "target"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := unpack(t.Context(), pack(t, nil, headers...), filepath.Join(parent, "dir")); err == nil {
			t.Errorf("%s: no error", name)
		}
		if found := entries(t, parent+"/*"); len(found) != 2 {
			t.Errorf("%s: it made %v", name, found)
		}
	}
}

// pack makes an archive like those of the repository: a tar archive, in xz, in a zip archive. It has executable files, by name, and
// further entries without content.
func pack(t *testing.T, files map[string]string, further ...tar.Header) []byte {
	t.Helper()
	var tarred, zipped bytes.Buffer
	tw := tar.NewWriter(&tarred)
	for name, content := range files {
		further = append(further, tar.Header{Name: name, Mode: 0o755, Size: int64(len(content))})
	}
	for _, header := range further {
		if err := tw.WriteHeader(&header); err != nil {
			t.Fatal(err)
		}
		if header.Size == 0 {
			continue
		}
		if _, err := io.WriteString(tw, files[header.Name]); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	zw := zip.NewWriter(&zipped)
	w, err := zw.Create("postgres-linux-x86_64.txz")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(storedXZ(tarred.Bytes())); err != nil {
		t.Fatal(err)
	}
	if err := zw.Close(); err != nil {
		t.Fatal(err)
	}
	return zipped.Bytes()
}

// storedXZ wraps data as an .xz file of uncompressed chunks (The .xz File Format 1.2.1), so that
// the test needs no compressor.
func storedXZ(data []byte) []byte {
	le := binary.LittleEndian
	checked := func(b []byte) []byte { return le.AppendUint32(b, crc32.ChecksumIEEE(b)) }
	varint := func(b []byte, n int) []byte { return binary.AppendUvarint(b, uint64(n)) }
	flags := []byte{0, 1} // the check is CRC32

	var out []byte
	out = append(out, 0xFD, '7', 'z', 'X', 'Z', 0)
	out = append(out, flags...)
	out = le.AppendUint32(out, crc32.ChecksumIEEE(flags))

	// Block header: 12 bytes, one filter, LZMA2 with a dictionary of 64 KiB, padding.
	block := checked([]byte{2, 0, 0x21, 1, 8, 0, 0, 0})
	for first, rest := byte(1), data; len(rest) > 0; first = 2 {
		n := min(len(rest), 1<<16)
		block = append(block, first, byte((n-1)>>8), byte(n-1))
		block = append(block, rest[:n]...)
		rest = rest[n:]
	}
	block = append(block, 0)
	unpadded := len(block) + 4
	for len(block)%4 != 0 {
		block = append(block, 0)
	}
	block = le.AppendUint32(block, crc32.ChecksumIEEE(data))
	out = append(out, block...)

	index := []byte{0, 1}
	index = varint(varint(index, unpadded), len(data))
	for len(index)%4 != 0 {
		index = append(index, 0)
	}
	index = checked(index)
	out = append(out, index...)

	footer := append(le.AppendUint32(nil, uint32(len(index)/4-1)), flags...)
	out = le.AppendUint32(out, crc32.ChecksumIEEE(footer))
	out = append(out, footer...)
	return append(out, 'Y', 'Z')
}
