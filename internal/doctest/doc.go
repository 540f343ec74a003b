// Package doctest runs the console blocks of README.md and docs/ and compares their output with the output printed there.
//
//	go test ./internal/doctest                      # every page, each with a server and a database of its own
//	go test ./internal/doctest -run Pages/jobs      # one page
//	go test ./internal/doctest -update              # write what was printed into the pages, where it differs
//	go test ./internal/doctest -update -all         # write everything that was printed, so that a page shows one run
//
// The blocks of a page are run in order, in one bash. Comments of HTML right before a block, or at the start of a page, have settings that readers need not see:
//
//	<!-- not run: REASON -->        the next block is not run
//	<!-- first: COMMANDS -->        commands that are run before the next block; their output is dropped
//	<!-- server: NAME='value' … --> settings of the page's server, at the start of the page
//
// Port 8080 of a page is its server. Port 9090 is an endpoint, which answers with the status in the file endpoint-status; without that file, with 204.
// Other ports are free: what is run before a block can start another server there, with the settings of that one.
//
// Values that differ from run to run are set apart by the table normalizers: times around now, receipts, keys, ids that are random, durations.
// A line of the output that is … stands for any lines.
package doctest
