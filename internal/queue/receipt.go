package queue

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"math"
	"strconv"
	"strings"
)

// maxTokens is how many tokens a claim has made before it is known how many events it gets: the database makes those of the further ones. So many take a tenth of the
// processor time of an empty claim.
const maxTokens = 256

// token is the random part of a receipt: 64 bits, as agent_private.claim_token has them.
type token [16]byte

// newTokens returns n tokens.
func newTokens(n int) []token {
	random := make([]byte, 8*n)
	_, _ = rand.Read(random) // never fails
	tokens := make([]token, n)
	for i := range tokens {
		hex.Encode(tokens[i][:], random[8*i:8*i+8])
	}
	return tokens
}

// hash returns what the database keeps of the token, see agent_private.token_hash.
func (t *token) hash() []byte {
	sum := sha256.Sum256(t[:])
	return sum[:8]
}

// receiptOf is agent.receipt of an event that was just claimed with this token.
func receiptOf[T string | []byte](e *Event, token T) string {
	b := make([]byte, 0, 48)
	b = strconv.AppendInt(b, e.ID, 10)
	b = strconv.AppendInt(append(b, '.'), int64(e.Attempts), 10)
	b = append(append(b, '.'), token...)
	return string(b)
}

// readReceipt returns the attempt and the hash of the token that a receipt of an event has. Where it is none, ok is false.
func readReceipt(id int64, receipt string) (attempt int32, hash []byte, ok bool) {
	var t token
	ofEvent, ofAttempt, isCut := strings.Cut(receipt, ".")
	ofAttempt, ofToken, isCutTwice := strings.Cut(ofAttempt, ".")
	if !isCut || !isCutTwice || len(ofToken) != len(t) || ofEvent != strconv.FormatInt(id, 10) {
		return 0, nil, false
	}
	n, err := strconv.ParseInt(ofAttempt, 10, 32)
	if err != nil || n < 1 || n > math.MaxInt32 || ofAttempt != strconv.FormatInt(n, 10) {
		return 0, nil, false
	}
	for i := range t {
		c := ofToken[i]
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return 0, nil, false
		}
		t[i] = c
	}
	return int32(n), t.hash(), true
}
