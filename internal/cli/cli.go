package cli

import (
	"io"
	"time"

	"github.com/alecthomas/kong"
)

// Commands are the commands of this package, to be embedded into the grammar of a program.
type Commands struct {
	Post          PostCmd          `cmd:"" group:"Client:" help:"Insert an event, or a file of events."`
	Claim         ClaimCmd         `cmd:"" group:"Client:" help:"Claim events."`
	Ack           AckCmd           `cmd:"" group:"Client:" help:"Ack claimed events: they go into history as done."`
	Nack          NackCmd          `cmd:"" group:"Client:" help:"Nack a claimed event: it waits again, or goes into history as failed."`
	Extend        ExtendCmd        `cmd:"" group:"Client:" help:"Extend the lease of a claimed event."`
	Release       ReleaseCmd       `cmd:"" group:"Client:" help:"Give claimed events back; the attempt does not count."`
	Run           RunCmd           `cmd:"" group:"Client:" help:"Make scheduled events claimable now, by id or by queue."`
	Queues        QueuesCmd        `cmd:"" group:"Client:" help:"List queues with their counts."`
	Queue         QueueCmd         `cmd:"" group:"Client:" help:"Show or set the policy of a queue; pause, resume, purge or delete it, or move its events."`
	Groups        GroupsCmd        `cmd:"" group:"Client:" help:"List the groups of a queue; show, set, pause, resume, hold or delete what holds for one."`
	Events        EventsCmd        `cmd:"" group:"Client:" help:"List the events in queues, or show one event."`
	History       HistoryCmd       `cmd:"" group:"Client:" help:"List the events in history."`
	Errors        ErrorsCmd        `cmd:"" group:"Client:" help:"Group the failures in history by cause."`
	Requeue       RequeueCmd       `cmd:"" group:"Client:" help:"Requeue events from history, by id or by filter."`
	Redrive       RedriveCmd       `cmd:"" group:"Client:" help:"Requeue all events of history that a filter matches, or dead letters, in the background."`
	Redrives      RedrivesCmd      `cmd:"" group:"Client:" help:"List redrives; show, pause, resume or cancel one."`
	Schedules     SchedulesCmd     `cmd:"" group:"Client:" help:"List schedules; show, create, preview, pause, resume, run or cancel one."`
	Owners        OwnersCmd        `cmd:"" group:"Client:" help:"List owners of schedules with their time zones; show, put or delete one."`
	Topics        TopicsCmd        `cmd:"" group:"Client:" help:"List the topics that have events in the log."`
	Publish       PublishCmd       `cmd:"" group:"Client:" help:"Publish an event, or a file of events, to a topic."`
	Tail          TailCmd          `cmd:"" group:"Client:" help:"Write events as they are published."`
	Subscriptions SubscriptionsCmd `cmd:"" group:"Client:" help:"List subscriptions; show, put, read, commit, seek, replay, pause, resume or delete one."`
	Sources       SourcesCmd       `cmd:"" group:"Client:" help:"List sources of webhooks; get, put, test or delete one, and list its deliveries."`
	Push          PushCmd          `cmd:"" group:"Client:" help:"Show where the events of a queue are pushed to; set, test, rotate, enable or delete that, and list the attempts."`
	Work          WorkCmd          `cmd:"" group:"Client:" help:"Run a command for each event of a queue."`
	Workers       WorkersCmd       `cmd:"" group:"Client:" help:"List workers with their leases."`
	Holders       HoldersCmd       `cmd:"" group:"Client:" help:"List what holds others back, such as transactions and leases that do not end."`
	Audit         AuditCmd         `cmd:"" group:"Client:" help:"List who managed what."`
	Top           TopCmd           `cmd:"" group:"Client:" help:"Watch queues live."`
	Context       ContextCmd       `cmd:"" group:"Client:" help:"List, use, set, show or delete contexts: servers under a name, with their keys."`
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

	// serverFrom is where the URL of the server comes from, and keyFrom the context that the key comes from, empty if it is none, for errors.
	serverFrom, keyFrom string
	status              statusLine
}
