package main

import (
	"io"
	"os"
	"strings"
)

// maxSecretFile is far more than any URL or key needs, and little enough to read whole.
const maxSecretFile = 64 << 10

// secret is the setting flag, whose value is value, or what the file at path holds, which the
// setting flag-file named. Both being set is an error.
func (s *source) secret(flag, value, path string, parse kind) (string, error) {
	if path == "" {
		return value, nil
	}
	fileName := s.name(flag + "-file")
	if s.given(flag) {
		return "", usagef("%s and %s are both set; set one of them", s.name(flag), fileName)
	}
	content, err := readStart(path, maxSecretFile+1)
	if err != nil {
		return "", usagef("%s: %s", fileName, err)
	}
	if len(content) > maxSecretFile {
		return "", usagef("%s: %s holds more than %d bytes, more than any value needs", fileName, path, maxSecretFile)
	}
	parsed, err := parse(strings.TrimSpace(string(content)), nil)
	if err != nil {
		return "", usagef("%s: in %s, %s", fileName, path, err)
	}
	return parsed.(string), nil
}

// readStart reads at most limit bytes of a file.
func readStart(path string, limit int64) ([]byte, error) {
	file, err := os.Open(path) //nolint:gosec // the operator names the file
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	return io.ReadAll(io.LimitReader(file, limit))
}
