package gatewaytest

import (
	"slices"
	"strings"
)

// A difference is a test that must fail through a gateway, or cannot be run through one.
type difference struct {
	suite, test string // test: its name, or that of a subtest, which stands for all below it
	why         string
	notRun      bool // it would not end, or takes minutes to fail
}

const (
	suiteHTTP   = "internal/http"
	suiteClient = "internal/clienttest"
)

// differences are the tests that must differ behind a gateway, however many cells there are.
var differences = []difference{
	{suite: suiteHTTP, test: "TestClientThatDoesNotReadIsClosedAndDelaysNobody", why: "the gateway reads for the client what fits into its buffers, and gives the client up after its own limit of 30 s", notRun: true},
	{suite: suiteHTTP, test: "TestCallsThatNeedAnIDSayThatThereAreNone", why: "the server is another cell than home, which a gateway cannot be without"},
	{suite: suiteHTTP, test: "TestCellSaysWhichIDsItGivesOut", why: "the same"},
	{suite: suiteHTTP, test: "TestIDsAtTheEndsOfACellWorkEverywhere", why: "the same"},
	{suite: suiteHTTP, test: "TestQueueIsSetAsOnTheCellThatItsCopyIsOf", why: "the same"},
	{suite: suiteHTTP, test: "TestEveryDocumentedResponseIsReturned", why: "queues are placed on cell 1, which the gateway was not told of: it refuses that, and home alone would not"},
	{suite: suiteHTTP, test: "TestEveryCallExceptHealthChecksRequiresTheKey", why: "the same: after that the gateway has no cell to ask who may call about the queue"},
	{suite: suiteHTTP, test: "TestCallsAreAnswered503WhenTheSchemaHasMovedBeyondTheProgram", why: "a gateway asks home whether the caller may see its version"},
	{suite: suiteHTTP, test: "TestFiltersEndWithTheTimeOfTheirRequest", why: "the server has no time for any request, so the gateway never uses it"},
	{suite: suiteHTTP, test: "TestPagesCountForTheRateLimitOfTheKey", why: "what the gateway asks without a key counts as unauthorized in the server's metrics"},
	{suite: suiteHTTP, test: "TestPagesOfOtherOriginsSendNoForms", why: "the gateway refuses other origins itself, with a problem and not with a page"},
}

// Find returns the entry of the list that a test of a suite is on.
func Find(suite, test string, _ int) (entry string, isListed bool) {
	for _, d := range differences {
		if d.suite == suite && (test == d.test || strings.HasPrefix(test, d.test+"/")) {
			return d.suite + " " + d.test, true
		}
	}
	return "", false
}

// Entries returns the entries of the list that are run.
func Entries(int) (entries []string) {
	for _, d := range differences {
		if !d.notRun {
			entries = append(entries, d.suite+" "+d.test)
		}
	}
	return entries
}

// NotRun returns the pattern of the tests that are not run, for go test -skip.
func NotRun(int) string {
	var names []string
	for _, d := range differences {
		if d.notRun {
			names = append(names, d.test)
		}
	}
	slices.Sort(names)
	return "^(" + strings.Join(names, "|") + ")$"
}
