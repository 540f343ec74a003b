package cli

import (
	"context"
	"strconv"

	"github.com/queued/queued/client"
)

// TopicsCmd lists topics.
type TopicsCmd struct {
	server `embed:""`
	Limit  int `short:"n" default:"100" placeholder:"N" min:"0" help:"How many topics to list; 0 for all (default 100)."`
}

// Help returns the text below the usage.
func (*TopicsCmd) Help() string {
	return examples(`queued topics`, `queued topics -n 0 -o jsonl | jq -r .topic`) + "\nFor the events of a topic: queued tail TOPIC --since 1h"
}

// Run lists the topics.
func (c *TopicsCmd) Run(ctx context.Context, env *Env) error {
	conn, err := c.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	return listSome(env, c.Output, c.Limit, topicsView, conn.ListTopics(ctx))
}

var topicsView = view[client.Topic]{
	columns: columns("TOPIC…", "EVENTS", "LAST POSITION", "LAST PUBLISHED@"),
	row: func(t client.Topic) []string {
		return []string{t.Topic, strconv.FormatInt(t.Events, 10), strconv.FormatInt(t.LastPosition, 10), moment(t.LastAt)}
	},
	empty: "no topics: the log has no events",
}
