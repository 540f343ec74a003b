package http

import (
	"net/http"
	"strconv"
	"time"

	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/queue"
)

// A group is what there is of one group of a queue: see queue.Group.
type group struct {
	Group       string       `json:"group"`
	Concurrency *int         `json:"concurrency"` // null: as the policy of the queue says
	Rate        *claimRate   `json:"rate"`        // the same
	Paused      bool         `json:"paused"`
	HeldUntil   *time.Time   `json:"held_until"`
	Waiting     int64        `json:"waiting"`
	Admitted    int64        `json:"admitted"`
	Leased      int64        `json:"leased"`
	Scheduled   int64        `json:"scheduled"`
	OldestAt    *time.Time   `json:"oldest_at"`
	NextAt      *time.Time   `json:"next_at"`
	BlockedBy   *queue.Block `json:"blocked_by"`
	Version     *int64       `json:"version"` // null: nothing is set for it
	UpdatedAt   *time.Time   `json:"updated_at"`
}

func groupOf(g queue.Group) group {
	return group{
		g.Key, g.Concurrency, claimRateOf(g.Rate), g.Paused, g.HeldUntil, g.Waiting, g.Admitted, g.Leased, g.Scheduled, g.Oldest, g.NextAt, g.BlockedBy, g.Version, g.UpdatedAt,
	}
}

// replyOfGroup answers with a group. One that nothing is set for has no version.
func replyOfGroup(g queue.Group, err error) (reply, error) {
	rep := reply{body: groupOf(g)}
	if g.Version != nil {
		rep.etag = etagOf(*g.Version)
	}
	return rep, err
}

type listGroupsResponse struct {
	Groups []group `json:"groups"`
	Next   *string `json:"next"`
}

type listGroupsRequest struct {
	Name string `path:"name" validate:"queue" log:"queue" restrict:"queue"`
	paging
	State string `query:"state" validate:"oneof=blocked"` // empty: any
	Sort  string `query:"sort" validate:"oneof=waiting"`  // empty: by name
}

// listGroups lists the groups of a queue. With sort=waiting there is one page, without cursors: its order changes as one looks.
func (s *Server) listGroups(r *http.Request, req listGroupsRequest) (reply, error) {
	isByWaiting := req.Sort == "waiting"
	if isByWaiting && req.Cursor != "" {
		return reply{}, problem.InField(problem.InvalidParameter, "?cursor", "must not be given with sort=waiting, which has one page")
	}
	page, err := s.svc.Groups(r.Context(), queue.GroupsParams{
		Queue: req.Name, Limit: req.Limit, Cursor: req.Cursor, Blocked: req.State == "blocked", ByWaiting: isByWaiting,
	})
	groups := convert(page.Groups, groupOf)
	err = s.requireIfEmpty(r, req.Name, int64(len(groups)), err)
	return reply{body: listGroupsResponse{groups, nextOf(page.Next)}}, err
}

type groupRequest struct {
	Name  string `path:"name" validate:"queue" log:"queue" restrict:"queue"`
	Group string `path:"group" log:"group" restrict:"-"`
}

func (s *Server) getGroup(r *http.Request, req groupRequest) (reply, error) {
	if err := checkGroup(req.Group); err != nil {
		return reply{}, err
	}
	g, err := s.svc.GetGroup(r.Context(), req.Name, req.Group)
	there := g.Waiting + g.Admitted + g.Leased + g.Scheduled
	if g.Version != nil {
		there++
	}
	return replyOfGroup(g, s.requireIfEmpty(r, req.Name, there, err))
}

// maxGroup is how long the name of a group is at most, in bytes.
const maxGroup = 255

// checkGroup returns the problem with the name of a group in a path, which is any text.
func checkGroup(name string) error {
	if len(name) > maxGroup {
		return problem.InField(problem.InvalidParameter, "{group}", "must be at most "+strconv.Itoa(maxGroup)+" bytes long")
	}
	return nil
}

type putGroupRequest struct {
	Name        string         `path:"name" validate:"queue,unreserved" log:"queue" restrict:"queue"`
	Group       string         `path:"group" log:"group" restrict:"-"`
	IfMatch     *precondition  `header:"If-Match"`
	IfNoneMatch *absence       `header:"If-None-Match"`
	Concurrency *int           `json:"concurrency" null:"nil" validate:"min=1,max=10000"`
	Rate        *claimRate     `json:"rate" null:"nil"`
	Paused      bool           `json:"paused"`
	HeldUntil   *time.Time     `json:"held_until" null:"nil"`
	Hold        *time.Duration `json:"hold" null:"nil" validate:"min=0s,max=87600h"`
}

// Check implements bind.Checker.
func (req *putGroupRequest) Check(report func(field, detail string)) {
	if req.Hold != nil && req.HeldUntil != nil {
		report("hold", "must not be given with held_until")
	}
}

func (s *Server) putGroup(r *http.Request, req putGroupRequest) (reply, error) {
	if err := checkGroup(req.Group); err != nil {
		return reply{}, err
	}
	only := queue.Precondition{Versions: req.IfMatch.versions(), Exists: req.IfMatch.isAny(), Absent: req.IfNoneMatch != nil}
	return replyOfGroup(s.svc.PutGroup(r.Context(), req.Name, req.Group, queue.GroupSettings{Concurrency: req.Concurrency, Rate: req.Rate.params(), Paused: req.Paused, HeldUntil: req.HeldUntil}, req.Hold, only))
}

type unblockGroupRequest struct {
	Name  string `path:"name" validate:"queue,unreserved" log:"queue" restrict:"queue"`
	Group string `path:"group" log:"group" restrict:"-"`
}

type unblockGroupResponse struct {
	Unblocked bool `json:"unblocked"` // false: it had not stopped
}

// unblockGroup has a group in order go on that stopped for events that failed.
func (s *Server) unblockGroup(r *http.Request, req unblockGroupRequest) (reply, error) {
	if err := checkGroup(req.Group); err != nil {
		return reply{}, err
	}
	wasBlocked, err := s.svc.UnblockGroup(r.Context(), req.Name, req.Group)
	return reply{body: unblockGroupResponse{wasBlocked}}, err
}

type deleteGroupRequest struct {
	Name    string        `path:"name" validate:"queue,unreserved" log:"queue" restrict:"queue"`
	Group   string        `path:"group" log:"group" restrict:"-"`
	IfMatch *precondition `header:"If-Match"`
}

// deleteGroup ends what was set for a group. Its events stay.
func (s *Server) deleteGroup(r *http.Request, req deleteGroupRequest) (reply, error) {
	if err := checkGroup(req.Group); err != nil {
		return reply{}, err
	}
	return noContent, s.svc.DeleteGroup(r.Context(), req.Name, req.Group, req.IfMatch.versions())
}
