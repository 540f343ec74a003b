package seal

import (
	"bytes"
	"errors"
	"testing"
)

func sealer(t *testing.T, keys ...string) *Sealer {
	t.Helper()
	s, err := NewSealer(keys...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSealedSecretsAreOpenedByAnyOfTheKeys(t *testing.T) {
	t.Parallel()
	const older, newer = "an older key of 30 characters!", "a newer key of 30 characters!!"
	before, both, after := sealer(t, older), sealer(t, newer, older), sealer(t, newer)
	sealed := before.Seal("whsec_1", "source:a")
	if secret, err := both.Open(sealed, "source:a"); err != nil || secret != "whsec_1" {
		t.Errorf("with both keys: %q, %v", secret, err)
	}
	if _, err := after.Open(sealed, "source:a"); !errors.Is(err, ErrSealed) {
		t.Errorf("without its key: %v", err)
	}
	if both.IsCurrent(sealed) || !both.IsCurrent(both.Seal("whsec_1", "source:a")) || !before.IsCurrent(sealed) {
		t.Error("IsCurrent is wrong about which key has sealed")
	}
	if secret, err := after.Open(both.Seal("whsec_1", "source:a"), "source:a"); err != nil || secret != "whsec_1" {
		t.Errorf("sealed anew: %q, %v", secret, err)
	}
}

func TestSealedSecretsTellNothingAndCannotBeChangedOrMoved(t *testing.T) {
	t.Parallel()
	s := sealer(t, "a key of 16 bytes")
	sealed := s.Seal("whsec_1", "source:a")
	if bytes.Contains(sealed, []byte("whsec")) || bytes.Equal(sealed, s.Seal("whsec_1", "source:a")) {
		t.Errorf("%q tells something", sealed)
	}
	if _, err := s.Open(sealed, "source:b"); !errors.Is(err, ErrSealed) {
		t.Errorf("for another owner: %v", err)
	}
	for i := range sealed {
		changed := bytes.Clone(sealed)
		changed[i] ^= 1
		if _, err := s.Open(changed, "source:a"); !errors.Is(err, ErrSealed) {
			t.Errorf("with byte %d changed: %v", i, err)
		}
		if _, err := s.Open(sealed[:i], "source:a"); !errors.Is(err, ErrSealed) {
			t.Errorf("its first %d bytes: %v", i, err)
		}
	}
}

func TestSealingKeysThatCanBeGuessedAreRefused(t *testing.T) {
	t.Parallel()
	for _, keys := range [][]string{nil, {""}, {"a key of 16 bytes", "short"}} {
		if _, err := NewSealer(keys...); err == nil {
			t.Errorf("%q are taken", keys)
		}
	}
}
