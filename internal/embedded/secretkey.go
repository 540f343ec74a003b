//go:build unix

package embedded

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
)

// SecretKeyFile is the file in the data directory that has the key for the secrets in the database.
const SecretKeyFile = "secret.key"

// SecretKey returns the key for the secrets in the database, which is in SecretKeyFile in the data directory at path, not in PostgreSQL's own directory. The first
// call makes it: 256 random bits, which only the owner of the directory may read. Any number of processes may call it at the same time.
func SecretKey(path string) (key string, isNew bool, err error) {
	dir, err := openDataDir(path)
	if err != nil {
		return "", false, err
	}
	if key, err = dir.readSecretKey(); errors.Is(err, fs.ErrNotExist) {
		key, isNew, err = dir.makeSecretKey()
	}
	if err != nil {
		// It wraps nothing: an error of the system would be taken for one of a connection, and waited for.
		return "", false, errors.New("the key for secrets: " + err.Error())
	}
	return key, isNew, nil
}

func (d dataDir) readSecretKey() (string, error) {
	file, err := os.OpenFile(d.file(SecretKeyFile), os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0) // to wait for no writer of a pipe
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	switch {
	case err != nil:
		return "", err
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("%s must be a file, and is none: %s", file.Name(), info.Mode())
	case info.Mode()&0o007 != 0: // the group may: some volumes are mounted so
		return "", fmt.Errorf("%s can be read or changed by everybody: %s; chmod 600 it, and change the key if somebody may have read it", file.Name(), info.Mode())
	}
	text, err := io.ReadAll(io.LimitReader(file, 4096))
	if err != nil {
		return "", err
	}
	key := strings.TrimSpace(string(text))
	if key == "" {
		return "", fmt.Errorf("%s is empty: put it back from a backup; without it, secrets in the database cannot be opened", file.Name())
	}
	return key, nil
}

// makeSecretKey writes the key into a file of another name, which becomes SecretKeyFile when it is complete. Who holds the lock of that file and finds no
// SecretKeyFile is the one who makes the key.
func (d dataDir) makeSecretKey() (key string, isNew bool, err error) {
	const staging = SecretKeyFile + ".new"
	file, err := d.open(staging, os.O_WRONLY)
	if err != nil {
		return "", false, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	for err = syscall.EINTR; errors.Is(err, syscall.EINTR); {
		err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		return "", false, fmt.Errorf("lock %s: %w", file.Name(), err)
	}
	if key, err = d.readSecretKey(); !errors.Is(err, fs.ErrNotExist) {
		return key, false, err
	}
	random := make([]byte, 32)
	_, _ = rand.Read(random) // never fails: it ends the program instead
	key = base64.StdEncoding.EncodeToString(random)
	if err := errors.Join(file.Truncate(0), file.Chmod(0o600)); err != nil {
		return "", false, err
	}
	if _, err := file.WriteString(key + "\n"); err != nil {
		return "", false, err
	}
	if err := file.Sync(); err != nil {
		return "", false, err
	}
	if err := os.Rename(d.file(staging), d.file(SecretKeyFile)); err != nil {
		return "", false, err
	}
	return key, true, syncDir(string(d))
}
