package cli

import (
	"io"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/queued/queued/client"
)

// Commands are the commands of this package, to be embedded into the grammar of a program.
type Commands struct {
	Post          PostCmd          `cmd:"" group:"Client:" help:"Insert an event, or a file of events."`
	Claim         ClaimCmd         `cmd:"" group:"Client:" help:"Claim events."`
	Ack           AckCmd           `cmd:"" group:"Client:" help:"Ack claimed events: they go into history as done."`
	Nack          NackCmd          `cmd:"" group:"Client:" help:"Nack a claimed event: it waits again, or goes into history as failed."`
	Extend        ExtendCmd        `cmd:"" group:"Client:" help:"Extend the lease of a claimed event."`
	Queues        QueuesCmd        `cmd:"" group:"Client:" help:"List queues with their counts."`
	Queue         QueueCmd         `cmd:"" group:"Client:" help:"Show or set the policy of a queue; pause, resume or purge it, or move its events."`
	Events        EventsCmd        `cmd:"" group:"Client:" help:"List the events in queues, or show one event."`
	History       HistoryCmd       `cmd:"" group:"Client:" help:"List the events in history."`
	Requeue       RequeueCmd       `cmd:"" group:"Client:" help:"Requeue events from history, by id or by filter."`
	Schedules     SchedulesCmd     `cmd:"" group:"Client:" help:"List schedules, or show one."`
	Publish       PublishCmd       `cmd:"" group:"Client:" help:"Publish an event, or a file of events, to a topic."`
	Tail          TailCmd          `cmd:"" group:"Client:" help:"Write events as they are published."`
	Subscriptions SubscriptionsCmd `cmd:"" group:"Client:" help:"List subscriptions; show, put, read, commit, seek, replay, pause, resume or delete one."`
	Sources       SourcesCmd       `cmd:"" group:"Client:" help:"List sources of webhooks; get, put, test or delete one."`
	Push          PushCmd          `cmd:"" group:"Client:" help:"Show where the events of a queue are pushed to; set, test, rotate, enable or delete that."`
	Work          WorkCmd          `cmd:"" group:"Client:" help:"Run a command for each event of a queue."`
	Top           TopCmd           `cmd:"" group:"Client:" help:"Watch queues live."`
	Completion    CompletionCmd    `cmd:"" group:"Client:" help:"Write the completion script of a shell."`
	Candidates    candidatesCmd    `cmd:"" name:"__complete" hidden:""`
}

// group is the group of the commands of this package in --help.
const group = "Client:"

// Has reports whether a command is one of this package.
func Has(command *kong.Node) bool {
	for ; command != nil; command = command.Parent {
		if command.Group != nil && command.Group.Key == group || command.Name == "__complete" {
			return true
		}
	}
	return false
}

// The exit codes of the commands of this package.
const (
	exitFailure   = 1
	exitUsage     = 2
	exitNothing   = 3 // there is no such event, queue, schedule, source or push, nothing to claim, or an event has not ended
	exitLeaseLost = 4
)

// Env is the environment of a command: input, output and variables of its process.
type Env struct {
	// Environ has the environment, as "NAME=value".
	Environ        []string
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Now returns the current time, for progress and for times that are given as an age.
	Now func() time.Time
}

// address is where a server is, and the key for it. They are settings of the program, with a variable each.
type address struct {
	URL     string `group:"Server:" type:"server-url" default:"http://127.0.0.1:8080"`
	Key     string `group:"Server:" type:"secret"`
	KeyFile string `group:"Server:" type:"path"`
}

// connection is how to reach a server.
type connection struct {
	address  `embed:""`
	Timeout  time.Duration `group:"Server:" default:"30s" help:"How long one try of a call may take, besides the time it asks the server to wait (default 30s)."`
	RetryFor time.Duration `group:"Server:" default:"30s" help:"How long to go on trying while the server cannot be reached or is overloaded (default 30s)."`
}

// server is a connection and the format of the answers. Every command that calls a server embeds it.
type server struct {
	connection `embed:""`
	Output     string `group:"Server:" short:"o" placeholder:"FORMAT" enum:"auto,table,json,jsonl" default:"auto" help:"How to write the answer: table, json (one document), jsonl (an object a line), or auto: table on a terminal, else jsonl."`
}

// client returns a client for the server. Close it.
func (s *connection) client() (*client.Client, error) {
	retryFor := s.RetryFor
	if retryFor == 0 {
		retryFor = -1 // which is none for package client
	}
	return s.connect(client.Config{Timeout: s.Timeout, RetryFor: retryFor})
}

// client returns a client with the time limits of package client. Close it.
func (a *address) client() (*client.Client, error) { return a.connect(client.Config{}) }

func (a *address) connect(cfg client.Config) (*client.Client, error) {
	cfg.URL, cfg.Key, cfg.UserAgent = a.URL, a.Key, "queued-cli"
	c, err := client.New(cfg)
	if err != nil {
		return nil, usagef("%s", strings.TrimPrefix(err.Error(), "client: "))
	}
	return c, nil
}
