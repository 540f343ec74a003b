package access

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"hash/crc32"
	"strings"
)

// The text of a key is qk_<id>_<secret><sum>, in lower case: qk_[a-z2-7]{8}_[a-z2-7]{33}. The sum is the CRC-32 (IEEE) of all before it, so
// that a wrong character is noticed without a look-up, and that scanners for leaked secrets find keys and little else.
const (
	keyPrefix    = "qk_"
	idLength     = 8
	secretLength = 26 // 130 bits
	sumLength    = 7
	keyLength    = len(keyPrefix) + idLength + 1 + secretLength + sumLength
)

var keyEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// newKeyText returns the text of a new key with this id; empty: with a new id.
func newKeyText(id string) string {
	if id == "" {
		id = randomText(idLength)
	}
	return withSum(keyPrefix + id + "_" + randomText(secretLength))
}

func withSum(text string) string {
	sum := sumOf(text)
	return text + string(sum[:])
}

// hasSum reports whether a text, of more than sumLength, ends with the sum of what is before that.
func hasSum(text string) bool {
	before := text[:len(text)-sumLength]
	sum := sumOf(before)
	return text[len(before):] == string(sum[:])
}

// randomText returns n random characters of the alphabet, 5 bits each.
func randomText(n int) string {
	bytes := make([]byte, (5*n+7)/8)
	_, _ = rand.Read(bytes) // it never fails
	return keyEncoding.EncodeToString(bytes)[:n]
}

func sumOf(text string) (sum [sumLength]byte) {
	var bytes [4]byte
	binary.BigEndian.PutUint32(bytes[:], crc32.ChecksumIEEE([]byte(text)))
	keyEncoding.Encode(sum[:], bytes[:])
	return sum
}

// keyID returns the id in the text of a key, empty for a text that cannot be one.
func keyID(text string) string {
	if len(text) != keyLength || !strings.HasPrefix(text, keyPrefix) || text[len(keyPrefix)+idLength] != '_' {
		return ""
	}
	if !hasSum(text) {
		return ""
	}
	id := text[len(keyPrefix) : len(keyPrefix)+idLength]
	if !isKeyID(id) {
		return ""
	}
	return id
}

// isKeyID reports whether a text can be the id of a key.
func isKeyID(text string) bool {
	for _, c := range []byte(text) {
		if (c < 'a' || c > 'z') && (c < '2' || c > '7') {
			return false
		}
	}
	return len(text) == idLength
}

func hashOf(text string) [sha256.Size]byte { return sha256.Sum256([]byte(text)) }

// signerOf returns the private key that signs in the name of a key. It is made of the key's text, so that nothing at rest can sign.
func signerOf(text string) ed25519.PrivateKey {
	mac := hmac.New(sha256.New, []byte(text))
	_, _ = mac.Write([]byte("queued: signatures of a key"))
	return ed25519.NewKeyFromSeed(mac.Sum(nil))
}

func verifierOf(text string) ed25519.PublicKey {
	return signerOf(text).Public().(ed25519.PublicKey)
}
