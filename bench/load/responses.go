package load

import (
	"bytes"
	"fmt"
)

// The responses are searched for the few values that are needed. That is safe because the payloads are
// this module's own: none of these names occurs in them.
var (
	nameID        = []byte(`"id":`)
	nameIDs       = []byte(`"ids":`)
	nameAcks      = []byte(`"acks":`)
	nameStatus    = []byte(`"status":`)
	nameReceipt   = []byte(`"receipt":`)
	nameCode      = []byte(`"code":`)
	nameVersion   = []byte(`"version":`)
	namePosition  = []byte(`"position":`)
	namePositions = []byte(`"positions":`)
	nameNext      = []byte(`"next":`)
	nameHead      = []byte(`"head":`)
	nameGap       = []byte(`"gap":`)
	nameCursor    = []byte(`"cursor":`)
)

// Lease is a claimed event.
type Lease struct {
	ID      int64
	Receipt []byte // valid until the client's next request
}

// after returns the bytes after the next occurrence of name, nil when there is none.
func after(body, name []byte) []byte {
	i := bytes.Index(body, name)
	if i < 0 {
		return nil
	}
	return bytes.TrimLeft(body[i+len(name):], " \n")
}

// number reads the digits at the start of body and returns the bytes after them.
func number(body []byte) (n int64, rest []byte, ok bool) {
	i := 0
	for ; i < len(body) && body[i] >= '0' && body[i] <= '9'; i++ {
		n = n*10 + int64(body[i]-'0')
	}
	return n, body[i:], i > 0
}

// text reads a string without escapes at the start of body and returns the bytes after it.
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

// Version reads the response of GET /version.
func Version(body []byte) (string, error) {
	version, _, ok := text(after(body, nameVersion))
	if !ok {
		return "", unexpected(body)
	}
	return string(version), nil
}

// parseInsert reads the response to one insert, where the id has this name.
func parseInsert(body, name []byte) (id int64, err error) {
	id, _, ok := number(after(body, name))
	if !ok {
		return 0, unexpected(body)
	}
	return id, nil
}

// parseInserts appends the ids of the response to a batch of inserts, where they have this name.
func parseInserts(ids []int64, body, name []byte) ([]int64, error) {
	list := after(body, name)
	if len(list) == 0 || list[0] != '[' {
		return ids, unexpected(body)
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

// parseClaim appends the leases of the response to a claim.
func parseClaim(leases []Lease, body []byte) ([]Lease, error) {
	ids, receipts := body, body
	for {
		ids, receipts = after(ids, nameID), after(receipts, nameReceipt)
		if ids == nil && receipts == nil {
			return leases, nil
		}
		var l Lease
		var hasID, hasReceipt bool
		l.ID, ids, hasID = number(ids)
		l.Receipt, receipts, hasReceipt = text(receipts)
		if !hasID || !hasReceipt {
			return leases, unexpected(body)
		}
		leases = append(leases, l)
	}
}

// parseAcks reads the response to a batch of acks, calling each with an id and its status.
func parseAcks(body []byte, each func(id, status int64)) error {
	for rest := after(body, nameID); rest != nil; rest = after(rest, nameID) {
		id, tail, hasID := number(rest)
		status, tail, hasStatus := number(after(tail, nameStatus))
		if !hasID || !hasStatus {
			return unexpected(body)
		}
		each(id, status)
		rest = tail
	}
	return nil
}

// problemCode is the code of a problem, empty when body is none.
func problemCode(body []byte) string {
	code, _, _ := text(after(body, nameCode))
	return string(code)
}

func unexpected(body []byte) error {
	const shown = 200
	return fmt.Errorf("not a response of queued: %q", body[:min(len(body), shown)])
}
