package queue

import (
	"context"

	"github.com/queued/queued/internal/groupcommit"
	"github.com/queued/queued/internal/pg"
)

// A Joint commits operations of another package in the group commits of a service, which inserts, acks and claims share: package topic publishes
// so. O is the operation of one call, committed all or nothing.
type Joint[O JointOperation] struct {
	svc *Service
	add func(tx QueryFunc, ops []O) (committed func())
}

// A QueryFunc has a statement join a transaction. read is called for each row of its result, and done after the last one.
type QueryFunc func(sql string, args []any, read func(*pg.RowReader), done func())

// JointOperation is a pointer to a struct that embeds a JointTicket.
type JointOperation interface {
	comparable
	jointTicket() *JointTicket
}

// A JointTicket is the group commit's state of an operation. It is good for one Do.
type JointTicket struct {
	Items, Bytes int  // bound a commit; Bytes are those of the payloads
	NeedsLock    bool // it may have to wait for another transaction, such as one that uses its idempotency key for the first time
	op           *operation
}

func (t *JointTicket) jointTicket() *JointTicket { return t }

// Unreadable notes that the result of the operation, which was committed, cannot be read, and the first time why: Do fails with ErrUnavailable.
func (t *JointTicket) Unreadable(err error) { t.op.unreadable(err) }

// Unanswered notes that the database returned nothing for the operation: Do fails with ErrUnavailable.
func (t *JointTicket) Unanswered() { t.op.unreadable(errNoAnswer) }

// NewJoint returns a Joint. add has the statements of all operations of one commit join its transaction, as the last of it, and is called again for
// those of a commit that failed. The function that it returns is called once they are committed. Neither may block.
func NewJoint[O JointOperation](s *Service, add func(tx QueryFunc, ops []O) (committed func())) *Joint[O] {
	return &Joint[O]{s, add}
}

// Do commits an operation. It fails as Insert does, and with the errors of its statements.
func (j *Joint[O]) Do(ctx context.Context, op O) error {
	ticket := op.jointTicket()
	ticket.op = &operation{
		Ticket: groupcommit.NewTicket(ticket.Items, ticket.Items*itemOverhead+ticket.Bytes), joint: &jointOperation[O]{j, op}, needsLock: ticket.NeedsLock,
	}
	return j.svc.write(ctx, ticket.op)
}

// jointOperation is an operation and the Joint that it came through.
type jointOperation[O JointOperation] struct {
	joint *Joint[O]
	op    O
}

// A joinable is a jointOperation of any kind.
type joinable interface {
	// join has those of the operations that came through the same Joint join the transaction, and returns the others.
	join(tx *transaction, ops []joinable) (others []joinable)
}

func (first *jointOperation[O]) join(tx *transaction, ops []joinable) (others []joinable) {
	own := make([]O, 0, len(ops))
	for _, op := range ops {
		if o, ok := op.(*jointOperation[O]); ok && o.joint == first.joint {
			own = append(own, o.op)
		} else {
			others = append(others, op)
		}
	}
	if committed := first.joint.add(tx.query, own); committed != nil {
		tx.committed = append(tx.committed, committed)
	}
	return others
}

// addJoints has the operations of other packages join the transaction. This has to come last: readers of the log wait from here on until the commit.
func (tx *transaction) addJoints(ops []*operation) {
	var joints []joinable
	for _, op := range ops {
		if op.joint != nil {
			joints = append(joints, op.joint)
		}
	}
	tx.hasJoints = len(joints) > 0
	for len(joints) > 0 {
		joints = joints[0].join(tx, joints)
	}
}
