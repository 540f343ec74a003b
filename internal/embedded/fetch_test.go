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
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// repository serves this machine's PostgreSQL the way Maven Central serves others.
type repository struct {
	*httptest.Server
	version   embeddedpostgres.PostgresVersion
	downloads atomic.Int32
}

func newRepository(t *testing.T, jar []byte, version embeddedpostgres.PostgresVersion) *repository {
	t.Helper()
	r := &repository{version: version}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch {
		case !strings.Contains(req.URL.Path, "/"+string(version)+"/"):
			http.NotFound(w, req)
		case strings.HasSuffix(req.URL.Path, ".jar"):
			r.downloads.Add(1)
			_, _ = w.Write(jar)
		default:
			_, _ = fmt.Fprintf(w, "%x", sha256.Sum256(jar))
		}
	}))
	t.Cleanup(r.Close)
	return r
}

// bare is a machine that has nothing but this repository.
func (r *repository) bare(t *testing.T) machine {
	t.Helper()
	return machine{
		places:     []string{},
		cache:      filepath.Join(newDir(t), "cache"),
		repository: r.URL,
		versions:   []embeddedpostgres.PostgresVersion{r.version},
	}
}

// archiveOfThisMachine returns the machine's server, packed, and its version as repositories write it.
func archiveOfThisMachine(t *testing.T) ([]byte, embeddedpostgres.PostgresVersion, programs) {
	t.Helper()
	a, err := accountFor(dataDir(newDir(t)))
	if err != nil {
		t.Fatal(err)
	}
	found, _, err := usable(t.Context(), a, machine{}.installed(t.Context()))
	if err != nil || len(found) == 0 {
		t.Fatalf("no PostgreSQL on this machine: %v", err)
	}
	files := map[string][]byte{}
	for _, name := range []string{"initdb", "postgres", "pg_ctl"} {
		// Not the copy, which would look for its libraries beside itself, but a door to the real one.
		files["bin/"+name] = []byte("#!/bin/sh\nexec '" + found[0].path(name) + "' \"$@\"\n")
	}
	version := embeddedpostgres.PostgresVersion(fmt.Sprintf("%d.%d.0", found[0].major, found[0].minor))
	return pack(t, files), version, found[0]
}

func TestFetchedBinariesRunTheServer(t *testing.T) {
	t.Parallel()
	jar, version, _ := archiveOfThisMachine(t)
	repository := newRepository(t, jar, version)
	cfg := careless(newDir(t))
	cfg.machine = repository.bare(t)
	server := start(t, cfg)
	run(t, server.URL(), "create table kept as select 42 as n")
	if !strings.HasPrefix(server.process.cmd.Path, cfg.machine.cache) {
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
	for _, left := range entries(t, cfg.machine.cache+"/*") {
		if name := filepath.Base(left); name != "lock" && name != "postgres-"+string(version) {
			t.Errorf("%s is left", left)
		}
	}
}

func TestFetchedBinariesMustBeOfTheClustersVersion(t *testing.T) {
	t.Parallel()
	jar, _, own := archiveOfThisMachine(t)
	repository := newRepository(t, jar, "16.9.0")
	dir := newDir(t)
	if err := errors.Join(os.Mkdir(dir+"/pg", 0o700), os.WriteFile(dir+"/pg/PG_VERSION", []byte("16\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if own.major == 16 {
		t.Skip("the machine's PostgreSQL is of the version that is to be another one")
	}
	cfg := careless(dir)
	cfg.machine = repository.bare(t)
	_, err := Start(t.Context(), cfg)
	mustSay(t, err, "16.9.0", "what came is PostgreSQL "+own.version())
}

func TestConcurrentStartsFetchOnce(t *testing.T) {
	t.Parallel()
	jar, version, _ := archiveOfThisMachine(t)
	repository := newRepository(t, jar, version)
	m := repository.bare(t)
	done := make(chan error)
	for range 3 {
		dir := newCluster(t)
		go func() {
			cfg := careless(dir)
			cfg.machine = m
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
	jar, version, _ := archiveOfThisMachine(t)
	for name, body := range map[string][]byte{
		"no archive":        []byte("<html>log in to this network</html>"),
		"cut short":         jar[:len(jar)/2],
		"without a server":  pack(t, map[string][]byte{"bin/psql": []byte("#!/bin/sh\n")}),
		"of something else": pack(t, map[string][]byte{"bin/initdb": nil, "bin/postgres": []byte("#!/bin/sh\nexit 1\n"), "bin/pg_ctl": nil}),
	} {
		cfg := careless(filepath.Join(newDir(t), "data"))
		cfg.machine = newRepository(t, body, version).bare(t)
		_, err := Start(t.Context(), cfg)
		if err == nil {
			t.Fatal(name)
		}
		t.Log(name)
		mustSay(t, err, "fetching PostgreSQL", "QUEUED_DATABASE_URL")
		if exists(cfg.DataDir) {
			t.Error("the data directory was made")
		}
		if left := entries(t, cfg.machine.cache+"/fetch-*"); len(left) > 0 {
			t.Errorf("%v is left", left)
		}
	}
}

func TestCancelledFetchReturnsAtOnce(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	hang := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		cancel()
		<-hang
	}))
	defer server.Close()
	cfg := careless(newDir(t))
	cfg.machine = machine{places: []string{}, cache: newDir(t), repository: server.URL}
	if _, err := Start(ctx, cfg); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	close(hang)
	held, err := lockCache(t.Context(), cfg.machine.cache) // when the download has come to its end
	if err != nil {
		t.Fatal(err)
	}
	if err := held.release(); err != nil {
		t.Error(err)
	}
}

func TestFetchLeavesNoTemporaryFiles(t *testing.T) {
	jar, version, _ := archiveOfThisMachine(t)
	m := newRepository(t, jar, version).bare(t)
	temp := newDir(t)
	t.Setenv("TMPDIR", temp)
	if err := os.Mkdir(m.cache, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := download(m.repository, version, m.cache, filepath.Join(m.cache, "target")); err != nil {
		t.Fatal(err)
	}
	if left := entries(t, temp+"/*"); len(left) > 0 {
		t.Errorf("%v are left", left)
	}
}

func TestFetchedBinariesAreReadableByEverybody(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	for path, mode := range map[string]fs.FileMode{"bin/postgres": 0o700, "share/sample": 0o600} {
		path = filepath.Join(dir, path)
		if err := errors.Join(os.Mkdir(filepath.Dir(path), 0o700), os.WriteFile(path, nil, mode)); err != nil {
			t.Fatal(err)
		}
	}
	if err := makeReadable(dir); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]fs.FileMode{"bin": 0o755, "bin/postgres": 0o755, "share": 0o755, "share/sample": 0o644} {
		if got := mode(t, filepath.Join(dir, path)); got != want {
			t.Errorf("%s has mode %s, want %s", path, got, want)
		}
	}
}

// pack puts files into an archive like those of the repository: a tar, in xz, in a zip.
func pack(t *testing.T, files map[string][]byte) []byte {
	t.Helper()
	var tarred, zipped bytes.Buffer
	tw := tar.NewWriter(&tarred)
	for name, body := range files {
		err := tw.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(body)), Typeflag: tar.TypeReg})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write(body); err != nil {
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
