package gatewaytest

import (
	"slices"
	"strings"
)

// A difference is a test that must fail through a gateway, or cannot be run through one.
type difference struct {
	suite, test string // test: its name, or that of a subtest, which stands for all below it
	why         string
	behind      behind
	notRun      bool // it would not end, or takes minutes to fail
}

// behind says how many cells a test differs with.
type behind int

const (
	anyCells     behind = iota // however many there are
	oneCell                    // one alone, to which the gateway passes everything on
	severalCells               // more than one
)

// has reports whether it is so with this number of cells.
func (b behind) has(cells int) bool {
	return b == anyCells || (b == severalCells) == (cells > 1)
}

const (
	suiteHTTP   = "internal/http"
	suiteClient = "internal/clienttest"
)

// differences are the tests that must differ behind a gateway.
var differences = []difference{
	{suite: suiteHTTP, test: "TestClientThatDoesNotReadIsClosedAndDelaysNobody", why: "the gateway reads for the client what fits into its buffers, and gives the client up after its own limit of 30 s", notRun: true},
	{suite: suiteHTTP, test: "TestCallsThatNeedAnIDSayThatThereAreNone", why: "the server is another cell than home, which a gateway cannot be without"},
	{suite: suiteHTTP, test: "TestCellSaysWhichIDsItGivesOut", why: "the same"},
	{suite: suiteHTTP, test: "TestIDsAtTheEndsOfACellWorkEverywhere", why: "the same"},
	{suite: suiteHTTP, test: "TestQueuesAreSetAsAtHome", why: "the same"},
	{suite: suiteHTTP, test: "TestEveryDocumentedResponseIsReturned", why: "queues are placed on cell 1, which the gateway was not told of: it refuses that, and home alone would not"},
	{suite: suiteHTTP, test: "TestEveryCallExceptHealthChecksRequiresTheKey", behind: oneCell, why: "the same: after that the gateway has no cell to ask who may call about the queue"},
	{suite: suiteHTTP, test: "TestCallsAreAnswered503WhenTheSchemaHasMovedBeyondTheProgram", why: "a gateway asks home whether the caller may see its version"},
	{suite: suiteHTTP, test: "TestFiltersEndWithTheTimeOfTheirRequest", why: "the server has no time for any request, so the gateway never uses it"},
	{suite: suiteHTTP, test: "TestPagesCountForTheRateLimitOfTheKey", why: "what the gateway asks without a key counts as unauthorized in the server's metrics"},
	{suite: suiteHTTP, test: "TestPagesOfOtherOriginsSendNoForms", behind: oneCell, why: "the gateway refuses other origins itself, with a problem and not with a page"},

	{suite: suiteHTTP, test: "TestQueueIsPlacedOnceByWhoeverUsesItFirst", behind: severalCells, why: "queues that home has from before there were other cells stay there: here the gateway has placed them before"},
	{suite: suiteHTTP, test: "TestQueueOfHomeIsMovedByItsFirstPlacement", behind: severalCells, why: "the gateway was not told of the cells that queues are placed on"},
	{suite: suiteHTTP, test: "TestQueuesOfACellAreThoseWithEvents", behind: severalCells, why: "a cell is asked for its queues, and the gateway has placed them on several"},
	{suite: suiteHTTP, test: "TestAuditSaysWhoManagedWhat", behind: severalCells, why: "what was done on other cells than home is in their audit"},
	{suite: suiteHTTP, test: "TestCallsForUndeclaredQueuesAreRefused", behind: severalCells, why: "each cell suggests names of the queues that it has"},
	{suite: suiteHTTP, test: "TestBodiesOfAllRequestsTakeNoMoreThanTheirBudget", behind: severalCells, why: "the gateway reads bodies of batches within its own budget, so those of the cells are not used up"},
	{suite: suiteHTTP, test: "TestInternalErrorsAreLoggedButNotSent", behind: severalCells, why: "a listing that no cell can answer is 503, whatever each of them says"},
	{suite: suiteHTTP, test: "TestSlowQueryIsAProblem", behind: severalCells, why: "a listing without the cell whose database is slow names it in unavailable_cells"},
	{suite: suiteHTTP, test: "TestSlowListingOfSchedulesIsAProblem", behind: severalCells, why: "the same"},
	{suite: suiteHTTP, test: "TestEveryCallIsAnsweredInTimeWhenTheDatabaseHangs", behind: severalCells, why: "the same"},
	{suite: suiteHTTP, test: "TestExportsOfAProcessAreFew", behind: severalCells, why: "exports of all queues are 409 several_cells"},
	{suite: suiteHTTP, test: "TestExportThatFailsLooksCutShort", behind: severalCells, why: "the same"},
	{suite: suiteHTTP, test: "TestExportThatIsNotReadIsGivenUp", behind: severalCells, why: "the same"},
}

// Find returns the entry of the list that a test of a suite is on.
func Find(suite, test string, cells int) (entry string, isListed bool) {
	for _, d := range differences {
		if d.behind.has(cells) && d.suite == suite && (test == d.test || strings.HasPrefix(test, d.test+"/")) {
			return d.suite + " " + d.test, true
		}
	}
	return "", false
}

// Entries returns the entries of the list that are run.
func Entries(cells int) (entries []string) {
	for _, d := range differences {
		if d.behind.has(cells) && !d.notRun {
			entries = append(entries, d.suite+" "+d.test)
		}
	}
	return entries
}

// NotRun returns the names of the tests that are not run.
func NotRun(cells int) (names []string) {
	for _, d := range differences {
		if d.behind.has(cells) && d.notRun {
			names = append(names, d.test)
		}
	}
	slices.Sort(names)
	return names
}
