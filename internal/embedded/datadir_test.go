//go:build unix

package embedded

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRootRunsPostgresAsAnotherUser(t *testing.T) {
	t.Parallel()
	onlyRoot(t)
	common.make(t)
	server := common.server
	if server.account.uid == 0 {
		t.Error("it runs as root")
	}
	owners := map[string]int{"": 0, "queued.lock": 0, "postgres.log": 0, "pg_hba.conf": 0, "pg_ident.conf": 0, "pg": server.account.uid, "run": server.account.uid}
	for name, want := range owners {
		info, err := os.Stat(filepath.Join(string(server.dir), name))
		if err != nil {
			t.Fatal(err)
		}
		if got := ownerOf(info); got != want {
			t.Errorf("%q belongs to %d, want %d", name, got, want)
		}
	}
}

func TestClosedDirectoryIsNamed(t *testing.T) {
	t.Parallel()
	onlyRoot(t)
	dir := newDir(t)
	closed := filepath.Join(dir, "closed")
	for _, at := range []string{closed, filepath.Join(closed, "open", "data")} {
		if err := errors.Join(os.MkdirAll(filepath.Join(closed, "open"), 0o755), os.Chmod(closed, 0o700)); err != nil {
			t.Fatal(err)
		}
		_, err := Start(t.Context(), noFsync(at))
		mustSay(t, err, closed+" (drwx------", "chmod o+x "+closed, "QUEUED_DATA_DIR")
		if made := entries(t, filepath.Join(closed, "open", "*")); len(made) > 0 {
			t.Errorf("it made %v", made)
		}
	}
	// Following the advice helps.
	if err := os.Chmod(closed, 0o701); err != nil {
		t.Fatal(err)
	}
	start(t, noFsync(filepath.Join(closed, "open", "data")))
}

func TestRestoredClusterOfRootIsAdopted(t *testing.T) {
	t.Parallel()
	onlyRoot(t)
	dir := newCluster(t) // a copy, made by root
	if info, err := os.Stat(filepath.Join(dir, "pg", "global", "pg_control")); err != nil || ownerOf(info) != 0 {
		t.Fatalf("%v, %v", info, err)
	}
	start(t, noFsync(dir))
}

func TestRootRunsAnExistingClusterAsItsOwner(t *testing.T) {
	t.Parallel()
	onlyRoot(t)
	dir := newCluster(t)
	const nobody = 65534
	if err := dataDir(dir).adopt(account{uid: nobody, gid: nobody, other: true}); err != nil {
		t.Fatal(err)
	}
	if server := start(t, noFsync(dir)); server.account.uid != nobody {
		t.Errorf("it runs as %d", server.account.uid)
	}
}

func TestDirectoryOfSomebodyElseIsRefused(t *testing.T) {
	t.Parallel()
	onlyRoot(t)
	dir := newDir(t)
	if err := os.Chown(dir, 12345, -1); err != nil {
		t.Fatal(err)
	}
	_, err := Start(t.Context(), noFsync(dir))
	mustSay(t, err, dir, "12345", "QUEUED_DATA_DIR")
}

func TestDirectoryOpenToEverybodyIsRefused(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	_, err := Start(t.Context(), noFsync(dir))
	mustSay(t, err, dir, "chmod o-w")
}

func TestDirectoryThatCannotBeMadeIsNamed(t *testing.T) {
	t.Parallel()
	file := filepath.Join(newDir(t), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{file, filepath.Join(file, "below"), "/proc/queued"} {
		_, err := Start(t.Context(), noFsync(dir))
		mustSay(t, err, dir)
	}
}

func TestDefaultDataDirIsTheUsersOwn(t *testing.T) {
	t.Parallel()
	home := func() (string, error) { return "/home/ann", nil }
	homeless := func() (string, error) { return "", errors.New("no home") }
	own := filepath.Join("/home/ann", filepath.FromSlash(userDataDir), "queued")
	for _, c := range []struct {
		euid int
		xdg  string
		home func() (string, error)
		want string
	}{
		{0, "/x", home, "/var/lib/queued"},
		{1000, "", home, own},
		{1000, "/x", homeless, "/x/queued"},
		{1000, "relative", home, own},
		{1000, "", homeless, ""},
	} {
		getenv := func(name string) string { return map[string]string{"XDG_DATA_HOME": c.xdg}[name] }
		got, err := defaultDataDir(c.euid, getenv, c.home)
		if got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%+v: %q, %v", c, got, err)
		}
		if err != nil && !strings.Contains(err.Error(), "QUEUED_DATA_DIR") {
			t.Errorf("the error does not say what to do: %v", err)
		}
	}
}

func TestHomeDirectoryIsFoundWithoutHOME(t *testing.T) {
	t.Setenv("HOME", "")
	t.Setenv("XDG_DATA_HOME", "")
	t.Setenv("XDG_CACHE_HOME", "")
	dir, err := DefaultDataDir()
	if err != nil || !filepath.IsAbs(dir) {
		t.Errorf("%q, %v", dir, err)
	}
	start(t, noFsync(newCluster(t)))
}
