package pg

import "errors"

// ErrNotDeclared is why a call is refused that names a queue which nobody has made; the error is an *UndeclaredError.
var ErrNotDeclared = errors.New("the queue is not declared")

// UndeclaredError says which queue is not declared.
type UndeclaredError struct{ Queue string }

func (e *UndeclaredError) Error() string { return ErrNotDeclared.Error() + ": " + e.Queue }

// Unwrap makes errors.Is(err, ErrNotDeclared) true.
func (e *UndeclaredError) Unwrap() error { return ErrNotDeclared }

// RequireQueue returns the SQL of a condition: if isRequired, the queue of this name (null: none), which is SQL, too, is declared, and stays so until the end of
// the transaction. The statement fails with an *UndeclaredError otherwise, so that what it has written before is undone.
func RequireQueue(isRequired bool, name string) string {
	if !isRequired {
		return "true"
	}
	return "agent_service.require_queues(array[" + name + "::text]) is not null"
}
