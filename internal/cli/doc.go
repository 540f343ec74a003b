// Package cli has the commands of queued that talk to a server: post, claim, queues, history and so on.
//
// [Commands] is embedded into the grammar of cmd/queued. Each command is a struct with the flags and arguments, as kong wants them, and a
// method Run(ctx, env), in the file of its noun. To add one, write such a file and a field of Commands. A command embeds [server] and calls
// the server through package client; it writes the answer with list or show, in the format of --output; it returns an error, which
// [ExitCode] turns into the exit code and [Describe] into a message.
//
// A command writes its answer to standard output, and everything about the answer to standard error: progress, hints, errors.
package cli
