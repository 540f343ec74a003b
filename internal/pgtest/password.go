package pgtest

import (
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
)

// verifier returns the verifier that PostgreSQL stores of a password, for SCRAM with one iteration of its hash (RFC 5802). PostgreSQL itself makes verifiers with
// 4,096, which each connection costs again; the tests make tens of thousands, and with the race detector that was a third of their processor time.
func verifier(password string) string {
	const iterations = 1
	salt := []byte("pgtest")
	salted, err := pbkdf2.Key(sha256.New, password, salt, iterations, sha256.Size)
	if err != nil {
		panic(err) // the arguments are right
	}
	sign := func(text string) []byte {
		mac := hmac.New(sha256.New, salted)
		mac.Write([]byte(text))
		return mac.Sum(nil)
	}
	storedKey := sha256.Sum256(sign("Client Key"))
	encode := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("SCRAM-SHA-256$%d:%s$%s:%s", iterations, encode(salt), encode(storedKey[:]), encode(sign("Server Key")))
}
