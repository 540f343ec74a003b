package workloads

import (
	"bytes"
	"fmt"
)

// The answers are scanned for the few values that are needed. That is safe because the payloads are
// this package's own: none of these names occurs in them.
var (
	nameID      = []byte(`"id":`)
	nameIDs     = []byte(`"ids":`)
	nameStatus  = []byte(`"status":`)
	nameReceipt = []byte(`"receipt":`)
	nameCode    = []byte(`"code":`)
)

// lease is what a claim gives.
type lease struct {
	id      int64
	receipt []byte // good until the next request on the connection
}

// after returns what follows the next occurrence of name, nil when there is none.
func after(body, name []byte) []byte {
	i := bytes.Index(body, name)
	if i < 0 {
		return nil
	}
	return bytes.TrimLeft(body[i+len(name):], " \n")
}

// number reads the digits at the start of body and returns what follows them.
func number(body []byte) (n int64, rest []byte, ok bool) {
	i := 0
	for ; i < len(body) && body[i] >= '0' && body[i] <= '9'; i++ {
		n = n*10 + int64(body[i]-'0')
	}
	return n, body[i:], i > 0
}

// text reads a string without escapes at the start of body and returns what follows it.
func text(body []byte) (value, rest []byte, ok bool) {
	if len(body) == 0 || body[0] != '"' {
		return nil, body, false
	}
	end := bytes.IndexByte(body[1:], '"')
	if end < 0 {
		return nil, body, false
	}
	return body[1 : end+1], body[end+2:], true
}

// scanID reads the answer to a post.
func scanID(body []byte) (int64, error) {
	id, _, ok := number(after(body, nameID))
	if !ok {
		return 0, strange(body)
	}
	return id, nil
}

// scanIDs reads the answer to a batch of posts into ids.
func scanIDs(body []byte, ids []int64) ([]int64, error) {
	list := after(body, nameIDs)
	if len(list) == 0 || list[0] != '[' {
		return ids, strange(body)
	}
	for {
		id, rest, ok := number(bytes.TrimLeft(list[1:], " \n"))
		if !ok {
			return ids, nil
		}
		ids = append(ids, id)
		if list = bytes.TrimLeft(rest, " \n"); len(list) == 0 || list[0] != ',' {
			return ids, nil
		}
	}
}

// scanLeases reads the answer to a claim into leases.
func scanLeases(body []byte, leases []lease) ([]lease, error) {
	ids, receipts := body, body
	for {
		ids, receipts = after(ids, nameID), after(receipts, nameReceipt)
		if ids == nil && receipts == nil {
			return leases, nil
		}
		var l lease
		var hasID, hasReceipt bool
		l.id, ids, hasID = number(ids)
		l.receipt, receipts, hasReceipt = text(receipts)
		if !hasID || !hasReceipt {
			return leases, strange(body)
		}
		leases = append(leases, l)
	}
}

// scanAcks reads the answer to a batch of acks, calling each with an id and its status.
func scanAcks(body []byte, each func(id, status int64)) error {
	for rest := after(body, nameID); rest != nil; rest = after(rest, nameID) {
		id, tail, hasID := number(rest)
		status, tail, hasStatus := number(after(tail, nameStatus))
		if !hasID || !hasStatus {
			return strange(body)
		}
		each(id, status)
		rest = tail
	}
	return nil
}

// problemCode is the code of a problem document, empty when body is none.
func problemCode(body []byte) string {
	code, _, _ := text(after(body, nameCode))
	return string(code)
}

func strange(body []byte) error {
	const shown = 200
	if len(body) > shown {
		body = body[:shown]
	}
	return fmt.Errorf("an answer that is not queued's: %q", body)
}
