package topic

import (
	"container/list"
	"context"
	"sync"

	"github.com/queued/queued/internal/match"
	"github.com/queued/queued/internal/pg"
)

const (
	// cachedFilterBytes bounds the texts of the filters that a process keeps compiled, unless one subscription has more.
	cachedFilterBytes = 64 << 20
	// filterOverhead is the memory of a filter besides its text, in bytes, about.
	filterOverhead = 1000
)

// A filterSet is the compiled filters of a subscription at one version of them. It is immutable.
type filterSet struct {
	id           int64 // of the subscription
	subscription string
	version      int64
	names        []string     // by id
	index        *match.Index // equal filters are evaluated once
	bytes        int
}

// A filterCache has the filters of subscriptions that were read last.
type filterCache struct {
	mu    sync.Mutex
	sets  map[int64]*list.Element // of a cachedSet, by the id of the subscription
	order list.List               // the latest first
	bytes int
	loads map[int64]*filterLoad // by the id of the subscription
}

// A filterLoad is filters that somebody is reading and compiling. Others wait for them: many may follow one subscription.
type filterLoad struct {
	done chan struct{}
	set  *filterSet // nil: it has failed
}

type cachedSet struct {
	id  int64
	set *filterSet
}

// get returns the filters of a subscription at a version, or, if they are not there, who is loading them: the caller itself, with isFirst, who then
// calls loaded.
func (c *filterCache) get(id, version int64) (set *filterSet, load *filterLoad, isFirst bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.sets[id]; e != nil && e.Value.(*cachedSet).set.version == version {
		c.order.MoveToFront(e)
		return e.Value.(*cachedSet).set, nil, false
	}
	if load = c.loads[id]; load != nil {
		return nil, load, false
	}
	if c.loads == nil {
		c.loads = make(map[int64]*filterLoad)
	}
	load = &filterLoad{done: make(chan struct{})}
	c.loads[id] = load
	return nil, load, true
}

// loaded ends the load that get began.
func (c *filterCache) loaded(id int64, load *filterLoad) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.loads, id)
	close(load.done)
}

func (c *filterCache) put(id int64, set *filterSet) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sets == nil {
		c.sets = make(map[int64]*list.Element)
	}
	if e := c.sets[id]; e != nil {
		c.remove(e)
	}
	c.sets[id] = c.order.PushFront(&cachedSet{id, set})
	c.bytes += set.bytes
	for c.bytes > cachedFilterBytes && c.order.Len() > 1 {
		c.remove(c.order.Back())
	}
}

func (c *filterCache) remove(e *list.Element) {
	cached := c.order.Remove(e).(*cachedSet)
	c.bytes -= cached.set.bytes
	delete(c.sets, cached.id)
}

// filterSet returns the filters of a subscription, at a version or a later one; nil if the subscription is gone.
func (s *Service) filterSet(ctx context.Context, name string, id, version int64) (*filterSet, error) {
	for {
		set, load, isFirst := s.filters.get(id, version)
		if set != nil {
			return set, nil
		}
		if isFirst {
			defer s.filters.loaded(id, load)
			set, err := s.loadFilters(ctx, name, id)
			load.set = set
			return set, err
		}
		select {
		case <-load.done:
			if load.set != nil && load.set.version >= version {
				return load.set, nil
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// loadFilters reads and compiles the filters of a subscription; nil if it is gone.
func (s *Service) loadFilters(ctx context.Context, name string, id int64) (*filterSet, error) {
	version, filters, err := s.readFilters(ctx, id)
	if err != nil || version == 0 {
		return nil, err
	}
	set := &filterSet{id: id, subscription: name, version: version, bytes: filterOverhead}
	compiled := make([]*match.Filter, len(filters))
	for i := range filters {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		f := &filters[i]
		set.names = append(set.names, f.Name)
		set.bytes += filterOverhead + 4*len(f.Match)
		for _, topic := range f.Topics {
			set.bytes += 4 * len(topic)
		}
		if compiled[i], err = match.Parse(f.Topics, f.Match); err != nil {
			s.logUnknownFilter(name, f.Name, err)
			compiled[i] = nil
		}
	}
	set.index = match.NewIndex(compiled)
	s.filters.put(id, set)
	return set, nil
}

// logUnknownFilter says that a later version has accepted a filter, whose events are not for this one.
func (s *Service) logUnknownFilter(subscription, filter string, err error) {
	s.cfg.Logger.Error().Err(err).Str("subscription", subscription).Str("filter", filter).Msg("a filter of a subscription cannot be compiled: it wants nothing here")
}

// readFilters returns the filters of a subscription, by name, and their version; 0 if the subscription is gone.
func (s *Service) readFilters(ctx context.Context, id int64) (version int64, filters []SubscriptionFilter, err error) {
	rows, _ := s.reads.Query(ctx, `select filters_version, name, topics, match, expires_after, expires_at from agent_service.read_filters($1)`, id)
	type row struct {
		FiltersVersion int64
		SubscriptionFilter
	}
	all, err := pg.Collect[row](rows)
	if err != nil {
		return 0, nil, wrap("reading the filters of a subscription", err)
	}
	filters = []SubscriptionFilter{}
	for i := range all {
		version = all[i].FiltersVersion
		if all[i].Name != "" {
			filters = append(filters, all[i].SubscriptionFilter)
		}
	}
	return version, filters, nil
}
