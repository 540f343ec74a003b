package queue

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/queued/queued/internal/pg"
)

// channel is the channel of agent.notify_queues. The payload is a queue's name, followed by "|" and the sender's name when a service sent it; it is
// empty when the database was adopted.
const channel = "agent_event"

// deletedSender is the sender of notifications that a queue was deleted, see agent.delete_queue.
const deletedSender = "deleted"

const notifySQL = `select agent.notify_queues($1, $2)`

// notifyInterval is the shortest time between two notifications of one service: a notifying commit takes a lock that all databases of the server share.
const notifyInterval = 20 * time.Millisecond

// Wake tells the waiting claims on queues, here and in other processes, that something was inserted into them.
func (s *Service) Wake(queues []string) {
	all := make(map[string]bool, len(queues))
	for _, queue := range queues {
		all[queue] = true
	}
	s.wake(all)
}

// wake tells the waiting claims on these queues, here and in other processes, that there may be something new, perhaps in a lane that is not known.
func (s *Service) wake(queues map[string]bool) {
	s.watermarks.MarkStale(queues)
	s.wakeHere(queues)
	s.notifier.add(queues)
}

// wakeHere wakes the waiting claims on these queues in this process.
func (s *Service) wakeHere(queues map[string]bool) {
	if len(queues) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for queue := range queues {
		if d := s.dispatchers[queue]; d != nil {
			d.wake()
		}
	}
}

// wakeAll wakes every waiting claim of this process.
func (s *Service) wakeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.dispatchers {
		d.wake()
	}
}

// notifier tells other processes which queues have something new: at once when there was no notification for a while, and everything that gathered
// since in one statement otherwise. A group commit takes the notification along.
type notifier struct {
	svc   *Service
	added pg.Signal // something was added to queues

	mu     sync.Mutex
	queues map[string]bool // that other processes have not been notified of
	last   time.Time       // when the last notification was sent
}

func newNotifier(s *Service) *notifier {
	return &notifier{svc: s, added: pg.NewSignal(), queues: make(map[string]bool)}
}

// add has other processes be notified of queues, soon.
func (n *notifier) add(queues map[string]bool) {
	if len(queues) == 0 {
		return
	}
	n.mu.Lock()
	maps.Copy(n.queues, queues)
	n.mu.Unlock()
	n.added.Send()
}

// due returns the queues to notify of now, together with more; none, and how long to wait, when it is too early for that.
func (n *notifier) due(more map[string]bool) (due map[string]bool, wait time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.queues)+len(more) == 0 {
		return nil, 0
	}
	now := time.Now()
	if wait := n.last.Add(notifyInterval).Sub(now); wait > 0 {
		return nil, wait
	}
	n.last = now
	due = maps.Clone(n.queues)
	clear(n.queues)
	maps.Copy(due, more)
	return due, 0
}

// notify notifies of the queues that wait for it, once it is time for that.
func (n *notifier) notify(ctx context.Context) error {
	pg.Worked(ctx) // it is woken by additions alone, and waits for notifyInterval
	due, wait := n.due(nil)
	for wait > 0 && pg.Pause(ctx, wait) {
		due, wait = n.due(nil)
	}
	if len(due) == 0 { // a group commit was faster
		return nil
	}
	_, err := n.svc.loops.Exec(ctx, notifySQL, slices.Collect(maps.Keys(due)), n.svc.name)
	return wrap("their waiting claims poll", err)
}

// subscriber wakes waiting claims on notifications from other processes and from SQL.
func (s *Service) subscriber() pg.Subscriber {
	return pg.Subscriber{
		Channel: channel,
		Started: func() {
			s.adopted.Send()
			s.wakeAll()
		},
		Received: func(payload string) {
			if payload == "" { // see agent.adopt_database
				s.adopted.Send()
				return
			}
			queue, sender, _ := strings.Cut(payload, "|")
			if sender == deletedSender {
				s.waits.forget(queue)
				s.forgetQueue(queue)
				return
			}
			s.declared.forgetUndeclared(queue)
			if sender == "" { // its policy may be another one
				s.waits.forget(queue)
			}
			if sender != s.name { // whose waiters were woken already
				queues := map[string]bool{queue: true}
				s.watermarks.MarkStale(queues)
				s.wakeHere(queues)
			}
		},
		Failed: func(error) { s.wakeAll() }, // they poll from now on
	}
}
