package http

import (
	"bytes"
	"fmt"
	"reflect"
)

// maxResult is how many bytes a result may have.
const maxResult = 64 << 10

// A result is what an ack says of the work: any JSON value that jsonb can hold as it is; nil is none.
type result []byte

var resultType = reflect.TypeFor[result]()

// result reads the next value, which must be a result, and sets v to its bytes.
func (d *decoder) result(v reflect.Value) error {
	start := d.json.InputOffset()
	inside := d.json.StackDepth() + 1
	for more := true; more; more = d.json.StackDepth() >= inside {
		if err := d.scan(inside); err != nil {
			return err
		}
	}
	said := bytes.TrimLeft(d.body[start:d.json.InputOffset()], blanks+":")
	if len(said) > maxResult {
		d.reject(d.pointer(), fmt.Sprintf("has %d bytes, a result may have %d at most", len(said), maxResult))
		return nil
	}
	v.SetBytes(said)
	return nil
}
