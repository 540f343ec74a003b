//go:build unix

package embedded

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
)

func TestSecretKeyIsMadeOnceAndPrivate(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	// The remains of a start that was interrupted.
	if err := os.WriteFile(filepath.Join(dir, SecretKeyFile+".new"), []byte("half a k"), 0o644); err != nil {
		t.Fatal(err)
	}
	const starts = 20
	var keys [starts]string
	var news [starts]bool
	var started sync.WaitGroup
	for i := range starts {
		started.Go(func() {
			var err error
			if keys[i], news[i], err = SecretKey(dir); err != nil {
				t.Error(err)
			}
		})
	}
	started.Wait()
	made := 0
	for i := range starts {
		if keys[i] != keys[0] || len(keys[i]) < 40 {
			t.Errorf("start %d got %q, and start 0 %q", i, keys[i], keys[0])
		}
		if news[i] {
			made++
		}
	}
	if made != 1 {
		t.Errorf("%d starts say that they have made it", made)
	}
	info, err := os.Stat(filepath.Join(dir, SecretKeyFile))
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if key, isNew, err := SecretKey(dir); key != keys[0] || isNew || err != nil {
		t.Errorf("a later start got %q, %v, %v", key, isNew, err)
	}
}

func TestEmptySecretKeyIsNotReplaced(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	path := filepath.Join(dir, SecretKeyFile)
	if err := os.WriteFile(path, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err := SecretKey(dir)
	mustSay(t, err, path, "backup")
}

func TestSecretKeyBehindALinkIsRefused(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	if err := os.Symlink("/etc/hostname", filepath.Join(dir, SecretKeyFile)); err != nil {
		t.Fatal(err)
	}
	_, _, err := SecretKey(dir)
	mustSay(t, err, SecretKeyFile)
}

func TestSecretKeyThatIsNoPrivateFileIsRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		make func(path string) error
		want string
	}{
		"directory": {func(path string) error { return os.Mkdir(path, 0o700) }, "must be a file"},
		"pipe":      {func(path string) error { return syscall.Mkfifo(path, 0o600) }, "must be a file"},
		"readable": {func(path string) error {
			return errors.Join(os.WriteFile(path, []byte("a key that everybody may read"), 0o600), os.Chmod(path, 0o604))
		}, "chmod 600"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := newDir(t)
			path := filepath.Join(dir, SecretKeyFile)
			if err := c.make(path); err != nil {
				t.Fatal(err)
			}
			_, _, err := SecretKey(dir)
			mustSay(t, err, path, c.want)
			if errors.As(err, new(syscall.Errno)) {
				t.Errorf("%v is taken for an error of a connection, and the start waits for it to go away", err)
			}
		})
	}
}
