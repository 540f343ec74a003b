package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
)

// A Sealer encrypts secrets so that who reads the database, or a dump of it, does not have them: AES-256-GCM under keys that are not in the database.
type Sealer struct {
	keys []sealingKey // the first seals, all open
}

type sealingKey struct {
	id   [keyIDSize]byte
	aead cipher.AEAD
}

// A sealed value is the version, the id of the key, the nonce and the ciphertext.
const (
	sealVersion = 1
	keyIDSize   = 4
	// MinKey is how many bytes a sealing key has at least. It need not be of random bytes only, but nobody must be able to guess it.
	MinKey = 16
)

// ErrSealed is wrapped by the error of a secret that cannot be opened: its key is none of the sealer's, or it was changed.
var ErrSealed = errors.New("the secret cannot be opened")

// NewSealer returns a sealer with one key or more. The first seals; all of them open secrets sealed before.
func NewSealer(keys ...string) (*Sealer, error) {
	if len(keys) == 0 {
		return nil, errors.New("there must be a key")
	}
	s := new(Sealer)
	for i, key := range keys {
		if len(key) < MinKey {
			return nil, fmt.Errorf("key %d: must have at least %d bytes, not %d", i+1, MinKey, len(key))
		}
		derived, err := hkdf.Key(sha256.New, []byte(key), nil, "queued sealing key", 32+keyIDSize)
		if err != nil {
			return nil, err
		}
		block, err := aes.NewCipher(derived[:32])
		if err != nil {
			return nil, err
		}
		aead, err := cipher.NewGCM(block)
		if err != nil {
			return nil, err
		}
		s.keys = append(s.keys, sealingKey{[keyIDSize]byte(derived[32:]), aead})
	}
	return s, nil
}

// A Kind is a kind of value that is sealed in a database, as agent_service.list_sealed names it.
type Kind string

// Kinds of values that are sealed.
const (
	SourceSecret Kind = "source"
	PushSecret   Kind = "push.secret"
	PushHeaders  Kind = "push.headers"
)

// Owner returns the owner that a value of this kind is sealed for, so that it cannot be moved to a row of another name, nor into the place of another kind.
func (k Kind) Owner(name string) string {
	noun, part, hasPart := strings.Cut(string(k), ".")
	owner := noun + ":" + name
	if hasPart {
		owner += ":" + part
	}
	return owner
}

// Seal encrypts a secret. It can be opened for the same owner only, see Kind.Owner.
func (s *Sealer) Seal(secret, owner string) []byte {
	key := &s.keys[0]
	sealed := append([]byte{sealVersion}, key.id[:]...)
	nonce := make([]byte, key.aead.NonceSize())
	_, _ = rand.Read(nonce) // never fails: it ends the program instead
	sealed = append(sealed, nonce...)
	return key.aead.Seal(sealed, nonce, []byte(secret), []byte(owner))
}

// Open decrypts a secret that Seal has encrypted. It fails with ErrSealed.
func (s *Sealer) Open(sealed []byte, owner string) (secret string, err error) {
	if len(sealed) < 1+keyIDSize || sealed[0] != sealVersion {
		return "", fmt.Errorf("%w: its form is unknown", ErrSealed)
	}
	id, rest := [keyIDSize]byte(sealed[1:]), sealed[1+keyIDSize:]
	isKnown := false
	for i := range s.keys {
		key := &s.keys[i]
		if key.id != id || len(rest) < key.aead.NonceSize() {
			continue
		}
		isKnown = true
		nonce, text := rest[:key.aead.NonceSize()], rest[key.aead.NonceSize():]
		if plain, err := key.aead.Open(nil, nonce, text, []byte(owner)); err == nil {
			return string(plain), nil
		}
	}
	if !isKnown {
		return "", fmt.Errorf("%w: it was sealed under a key that is not among those of QUEUED_SECRET_KEY", ErrSealed)
	}
	return "", fmt.Errorf("%w: it was changed", ErrSealed)
}

// IsCurrent reports whether the key that seals has sealed it: if not, it should be sealed anew.
func (s *Sealer) IsCurrent(sealed []byte) bool {
	return len(sealed) >= 1+keyIDSize && sealed[0] == sealVersion && [keyIDSize]byte(sealed[1:]) == s.keys[0].id
}
