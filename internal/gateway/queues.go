package gateway

import (
	"net/http"
	"slices"
)

// queueRules join what several cells say of one queue. Its policy is that of the first cell that it is placed on.
var queueRules = rules{
	"ready": sum, "scheduled": sum, "waiting": sum, "leased": sum, "done_last_hour": sum, "expired_last_hour": sum, "oldest_ready_age": longest, "estimated": either, "dead_letters_of": union,
}

// leading returns which of cells has the policy of a queue that is on all of them: the first of those that it is placed on, or else the first of all.
func (g *Gateway) leading(queue string, cells []*cell) int {
	if p, _ := g.placements.get(queue); p != nil {
		for _, number := range p.Cells {
			if i := slices.IndexFunc(cells, func(at *cell) bool { return at.number == number }); i >= 0 {
				return i
			}
		}
	}
	return 0
}

// joinQueues makes one element of those that a queue has on several cells.
func joinQueues(g *Gateway, elements []element, cells []*cell) ([]byte, error) {
	lead := g.leading(elements[0].key.name, cells)
	joined, err := parseObject(elements[lead].appendTo(nil))
	if err != nil {
		return nil, err
	}
	for i := range elements {
		if i == lead {
			continue
		}
		other, err := parseObject(elements[i].raw)
		if err != nil {
			return nil, err
		}
		queueRules.join(joined, other)
	}
	return joined.appendTo(nil), nil
}

// getQueue is for the policy and the counts of the queue in the path.
func getQueue(g *Gateway, c *call, r *http.Request) error {
	queue := pathValue(r, "name")
	cells, err := g.cellsOf(queue)
	if err != nil {
		return err
	}
	c.queue = queue
	g.answerFrom(c, cells, r, func(r *http.Request) error {
		return g.answerJoined(c, r, cells, r.URL.Query(), func(parts []statedPart) (*object, error) {
			answering := make([]*cell, len(parts))
			for i := range parts {
				answering[i] = parts[i].at
			}
			lead := g.leading(queue, answering)
			joined := parts[lead].body
			for i := range parts {
				if i != lead {
					queueRules.join(joined, parts[i].body)
				}
			}
			if etag := parts[lead].header.Get("ETag"); etag != "" {
				c.Header().Set("ETag", etag)
			}
			return joined, nil
		})
	})
	return nil
}
