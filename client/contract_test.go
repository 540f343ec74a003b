package client

import (
	"encoding/json"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// A wire is what a method sends and decodes; nil: nothing, or a payload of the caller's.
type wire struct{ query, request, response any }

type batchQuery struct {
	Atomic bool `query:"atomic"`
}

// wires has every operation of the contract that a method makes.
var wires = map[string]wire{
	"insert":      {query: NewEvent{}, response: Inserted{}},
	"insertBatch": {query: batchQuery{}, request: insertBatchRequest{}, response: insertedBatch{}},
	"listEvents":  {query: EventFilter{}, response: eventPage{}},
	"getEvent": {query: struct {
		Wait time.Duration `query:"wait"`
	}{}, response: Event{}},
	"listAttempts": {response: attemptList{}},
	"claim":        {request: claimRequest{}, response: claimedEvents{}},
	"ack": {query: struct {
		Receipt string `query:"receipt"`
	}{}},
	"ackWithResult": {request: ackRequest{}, response: ackedEvent{}},
	"ackBatch":      {request: ackBatchRequest{}, response: ackResults{}},
	"nack":          {request: NackParams{}, response: Nacked{}},
	"extend":        {request: extendRequest{}, response: extendedLease{}},
	"extendBatch":   {request: extendBatchRequest{}, response: leaseResults{}},
	"release":       {request: releaseRequest{}, response: extendedLease{}},
	"releaseBatch":  {request: releaseBatchRequest{}, response: leaseResults{}},
	"sweep":         {request: SweepParams{}, response: sweptEvents{}},
	"listHistory": {query: struct {
		HistoryFilter
		Format ExportFormat `query:"format"`
	}{}, response: eventPage{}},
	"historyStats": {query: struct {
		HistoryStatsParams
		Format ExportFormat `query:"format"`
	}{}, response: historyStats{}},
	"requeue":         {response: requeuedEvent{}},
	"requeueMatching": {request: RequeueParams{}, response: Requeued{}},
	"createRedrive":   {request: createRedriveRequest{}, response: Redrive{}},
	"listRedrives":    {query: RedriveListing{}, response: redrivePage{}},
	"getRedrive":      {response: Redrive{}},
	"pauseRedrive":    {response: Redrive{}},
	"resumeRedrive":   {response: Redrive{}},
	"cancelRedrive":   {response: Redrive{}},
	"listQueues":      {query: queueQuery{}, response: queuePage{}},
	"getQueue":        {response: Queue{}},
	"queueStats":      {query: SeriesParams{}, response: QueueSeries{}},
	"queuesOverview":  {query: OverviewParams{}, response: QueuesOverview{}},
	"putQueue":        {request: QueueSettings{}, response: Policy{}},
	"deleteQueue": {query: struct {
		Purge bool `query:"purge"`
	}{}, response: purgedEvents{}},
	"listGroups":     {query: GroupFilter{}, response: groupPage{}},
	"getGroup":       {response: Group{}},
	"putGroup":       {request: GroupSettings{}, response: Group{}},
	"deleteGroup":    {},
	"unblockGroup":   {response: unblockedGroup{}},
	"pauseQueue":     {response: Policy{}},
	"resumeQueue":    {response: Policy{}},
	"purgeQueue":     {response: purgedEvents{}},
	"moveEvents":     {request: MoveParams{}, response: movedEvents{}},
	"runEvent":       {response: runEvent{}},
	"runQueue":       {request: RunParams{}, response: runEvents{}},
	"listExecutions": {query: ExecutionFilter{}, response: executionList{}},
	"listProcesses":  {response: processList{}},
	"listWorkers":    {query: WorkersParams{}, response: Workers{}},
	"listHolders":    {response: Holders{}},
	"historyErrors":  {query: CauseFilter{}, response: HistoryErrors{}},
	"showVersion":    {response: Version{}},
	"getCell":        {response: Cell{}},

	"leaveKeys": {request: leaveKeysRequest{}, response: leftKeys{}},
	"listCells": {response: cellList{}},
	"putCell":   {request: PutCellParams{}, response: ListedCell{}},
	"deleteCell": {query: struct {
		Keys string `query:"keys"`
	}{}},
	"putPlacement":    {request: PlaceParams{}, response: Placement{}},
	"placeNewQueue":   {request: placeNewQueueRequest{}, response: Placement{}},
	"getPlacement":    {response: Placement{}},
	"drainPlacement":  {request: drainRequest{}, response: Placement{}},
	"deletePlacement": {},
	"insertForwarded": {request: insertForwardedRequest{}, response: forwardedEvents{}},
	"listCellQueues": {query: struct {
		Limit int `query:"limit"`
	}{}, response: cellQueues{}},
	"listKeyCopies":   {query: KeyCopyFilter{}, response: KeyCopies{}},
	"putKeyCopies":    {request: KeyCopiesPut{}, response: PutKeyCopies{}},
	"listQueueCopies": {query: QueueCopyFilter{}, response: QueueCopies{}},
	"putQueueCopies":  {request: QueueCopiesPut{}, response: PutQueueCopies{}},
	"listPlacements":  {query: PlacementFilter{}, response: Placements{}},

	"livez":  {},
	"readyz": {},

	"createSchedule":  {request: NewSchedule{}, response: Schedule{}},
	"listSchedules":   {query: ScheduleFilter{}, response: schedulePage{}},
	"previewSchedule": {request: PreviewParams{}, response: schedulePreview{}},
	"getSchedule":     {response: Schedule{}},
	"patchSchedule":   {response: Schedule{}}, // the request is a map
	"deleteSchedule":  {},
	"pauseSchedule":   {response: Schedule{}},
	"resumeSchedule":  {response: Schedule{}},
	"runSchedule":     {response: Occurrence{}},
	"listOccurrences": {query: struct {
		pageSize
		N int `query:"n"`
	}{}, response: occurrencePage{}},
	"listOwners":  {query: pageSize{}, response: ownerPage{}},
	"putOwner":    {request: putOwnerRequest{}, response: Owner{}},
	"getOwner":    {response: Owner{}},
	"deleteOwner": {},

	"putPush":              {request: PushSettings{}, response: Push{}},
	"getPush":              {response: Push{}},
	"deletePush":           {},
	"rotatePushSecret":     {request: rotateSecretRequest{}, response: Push{}},
	"listPushDeliveries":   {query: PushDeliveryFilter{}, response: PushDeliveryPage{}},
	"testPush":             {response: PushTest{}},
	"enablePush":           {response: Push{}},
	"listSources":          {query: pageSize{}, response: sourcePage{}},
	"putSource":            {request: SourceSettings{}, response: Source{}},
	"getSource":            {response: Source{}},
	"deleteSource":         {},
	"listSourceDeliveries": {query: SourceDeliveryFilter{}, response: SourceDeliveryPage{}},
	"testSource":           {request: TrialDelivery{}, response: TriedDelivery{}},

	"createKey": {request: NewKey{}, response: IssuedKey{}},
	"listKeys":  {query: pageSize{}, response: keyPage{}},
	"getOwnKey": {response: OwnKey{}},
	"getKey":    {response: AccessKey{}},
	"patchKey":  {response: AccessKey{}}, // the request is a map
	"revokeKey": {},
	"rotateKey": {request: rotateRequest{}, response: IssuedKey{}},
	"listAudit": {query: struct {
		AuditFilter
		Format ExportFormat `query:"format"`
	}{}, response: auditPage{}},

	"publish":           {query: NewPublication{}, response: Published{}},
	"publishBatch":      {query: batchQuery{}, request: publishBatchRequest{}, response: publishedBatch{}},
	"listTopics":        {query: pageSize{}, response: topicPage{}},
	"match":             {request: MatchParams{}, response: Matched{}},
	"readLog":           {query: ReadParams{}, response: LogPage{}},
	"stream":            {query: StreamParams{}},
	"createStreamToken": {request: streamTokenRequest{}, response: StreamToken{}},
	"getPublished":      {response: PublishedEvent{}},
	"getLogSettings":    {response: logSettings{}},
	"putLogSettings":    {request: logSettings{}, response: logSettings{}},

	"listSubscriptions":  {query: pageSize{}, response: subscriptionPage{}},
	"putSubscription":    {request: SubscriptionSettings{}, response: Subscription{}},
	"getSubscription":    {response: Subscription{}},
	"deleteSubscription": {},
	"putFilter":          {request: SubscribedFilter{}, response: SubscribedFilter{}},
	"deleteFilter":       {},
	"readSubscription":   {request: SubscriptionRead{}, response: SubscribedPage{}},
	"commitCursor":       {request: commitRequest{}, response: subscriptionPosition{}},
	"seekSubscription":   {request: seekRequest{}, response: soughtPosition{}},
	"replaySubscription": {request: Replay{}, response: replayedEvents{}},
	"pauseSubscription":  {response: Subscription{}},
	"resumeSubscription": {response: Subscription{}},
	"streamSubscription": {query: struct{ From Place }{}},
}

// notSent are fields of the contract that a method has no use for, and foreign those of a type that serves other operations, too.
var (
	notSent = map[string][]string{
		"stream": {"data", "token"}, "streamSubscription": {"data", "token"}, // the envelope is needed, and headers can be sent
	}
	foreign = map[string][]string{
		"listEvents":        {"events/receipt", "events/outcome", "events/status", "events/finished_at", "events/first_attempted_at", "events/last_attempted_at", "events/processing_ms", "events/result", "events/retryable", "events/requeued_as", "events/dead_lettered_as"},
		"claim":             {"events/state", "events/error_count", "events/outcome", "events/status", "events/finished_at", "events/first_attempted_at", "events/last_attempted_at", "events/processing_ms", "events/result", "events/retryable", "events/requeued_as", "events/dead_lettered_as"},
		"listHistory":       {"events/receipt", "events/state"},
		"getEvent":          {"receipt"},
		"readLog":           {"events/matched"},
		"getPublished":      {"matched"},
		"getPush":           {"secret"},
		"enablePush":        {"secret"},
		"putFilter":         {"name", "expires_at"},
		"putSubscription":   {"filters/expires_at"},
		"putLogSettings":    {"updated_at"},
		"listSubscriptions": {"subscriptions/filters"},
	}
)

// ofSeveralCells are fields of responses that the client sets itself, when it has asked several cells.
var ofSeveralCells = []string{"unavailable_cells", "others", "redrives/others", "holders/cell", "processes/cell"}

// An operation of the contract, as internal/clienttest describes it: what each field is by its path, and the examples of responses.
type operation struct {
	Query, Request, Response map[string]string
	Examples                 map[string]json.RawMessage
}

// contract returns the operations of the contract, and the fields and codes of its problems.
func contract(t *testing.T) (c struct {
	Operations map[string]operation
	Problem    map[string]string
	Codes      []string
},
) {
	t.Helper()
	file := os.Getenv(contractEnv)
	if file == "" {
		t.Skip("go test ./internal/clienttest, in the module of the server, runs this with the contract")
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &c); err != nil {
		t.Fatal(err)
	}
	return c
}

// operations returns every operation that has a method.
func operations(t *testing.T) map[string]operation {
	t.Helper()
	known := contract(t).Operations
	made := make(map[string]operation)
	for id := range wires {
		op, ok := known[id]
		if !ok {
			t.Errorf("the contract has no operation %s", id)
			continue
		}
		made[id] = op
	}
	return made
}

// fieldsOfType adds what each field of a Go type is, by its path in JSON.
func fieldsOfType(into map[string]string, path, tag string, t reflect.Type) {
	switch t {
	case reflect.TypeFor[time.Duration](), reflect.TypeFor[duration](), reflect.TypeFor[nullDuration]():
		into[path] = "duration"
		return
	case reflect.TypeFor[time.Time]():
		into[path] = "time"
		return
	case reflect.TypeFor[json.RawMessage](), reflect.TypeFor[Place](), reflect.TypeFor[Cells]():
		into[path] = "any"
		return
	}
	switch t.Kind() {
	case reflect.Pointer:
		fieldsOfType(into, path, tag, t.Elem())
	case reflect.Slice:
		fieldsOfType(into, path, tag, t.Elem())
		into[path] = "array"
	case reflect.Struct:
		into[path] = "object"
		for i := range t.NumField() {
			field := t.Field(i)
			name, _, _ := strings.Cut(field.Tag.Get(tag), ",")
			switch {
			case field.Anonymous:
				fieldsOfType(into, path, tag, field.Type)
			case name != "" && name != "-":
				fieldsOfType(into, join(path, name), tag, field.Type)
			}
		}
	case reflect.Map:
		into[path] = "object"
	case reflect.Interface:
		into[path] = "any"
	case reflect.String:
		into[path] = "string"
	case reflect.Bool:
		into[path] = "boolean"
	case reflect.Float64:
		into[path] = "number"
	default:
		into[path] = "integer"
	}
}

func join(path, name string) string { return strings.TrimPrefix(path+"/"+name, "/") }

// compare compares fields. What is any JSON on one side is not looked into on the other.
func compare(t *testing.T, what string, ours, theirs map[string]string, except []string) {
	t.Helper()
	for _, fields := range []map[string]string{ours, theirs} {
		for _, path := range except {
			maps.DeleteFunc(fields, func(name, _ string) bool { return name == path || strings.HasPrefix(name, path+"/") })
		}
	}
	for path, is := range ours {
		if is != "any" {
			continue
		}
		maps.DeleteFunc(theirs, func(name, _ string) bool { return strings.HasPrefix(name, path+"/") })
		if _, ok := theirs[path]; ok {
			theirs[path] = "any"
		}
	}
	either := maps.Clone(theirs)
	maps.Copy(either, ours)
	for _, path := range slices.Sorted(maps.Keys(either)) {
		if ours[path] != theirs[path] && !slices.Contains(ofSeveralCells, path) {
			t.Errorf("%s, %s: %q in the client, %q in the contract", what, path, ours[path], theirs[path])
		}
	}
}

func TestTypesHaveTheFieldsOfTheContract(t *testing.T) {
	t.Parallel()
	for id, op := range operations(t) {
		t.Run(id, func(t *testing.T) {
			t.Parallel()
			w := wires[id]
			compare(t, "query", queryFields(w), op.Query, notSent[id])
			for _, part := range []struct {
				what   string
				value  any
				theirs map[string]string
			}{{"request", w.request, op.Request}, {"response", w.response, op.Response}} {
				if part.value != nil {
					ours := map[string]string{}
					fieldsOfType(ours, "", "json", reflect.TypeOf(part.value))
					compare(t, part.what, ours, part.theirs, foreign[id])
				}
			}
		})
	}
}

// queryFields returns the parameters of the query that the client has.
func queryFields(w wire) map[string]string {
	fields := map[string]string{}
	if w.query != nil {
		fieldsOfType(fields, "", "query", reflect.TypeOf(w.query))
		delete(fields, "")
		for i := range reflect.TypeOf(w.query).NumField() {
			if reflect.TypeOf(w.query).Field(i).Type == reflect.TypeFor[Place]() {
				fields["after"], fields["at"] = "string", "time"
			}
		}
	}
	return fields
}

// The example responses of the contract decode, and encode to the same.
func TestResponsesOfTheContractSurviveDecoding(t *testing.T) {
	t.Parallel()
	decoded := 0
	for id, op := range operations(t) {
		if wires[id].response == nil {
			continue
		}
		for name, text := range op.Examples {
			value := reflect.New(reflect.TypeOf(wires[id].response))
			if err := json.Unmarshal(text, value.Interface()); err != nil {
				t.Errorf("%s, %s: %v", id, name, err)
				continue
			}
			again, err := json.Marshal(value.Interface())
			if err != nil {
				t.Fatal(err)
			}
			decoded++
			if theirs, ours := normal(t, text), normal(t, again); !reflect.DeepEqual(theirs, ours) {
				t.Errorf("%s, %s: %v became\n%v", id, name, theirs, ours)
			}
		}
	}
	if decoded < 50 {
		t.Errorf("only %d examples were decoded", decoded)
	}
}

// normal decodes JSON. Durations and times become what they mean, however they are written.
func normal(t *testing.T, text []byte) any {
	t.Helper()
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	return normalized(v)
}

func normalized(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name := range v {
			v[name] = normalized(v[name])
		}
	case []any:
		for i := range v {
			v[i] = normalized(v[i])
		}
	case string:
		if d, err := time.ParseDuration(v); err == nil {
			return d.String()
		}
		if at, err := time.Parse(time.RFC3339Nano, v); err == nil {
			return timeText(at)
		}
	}
	return v
}

// Each operation that the client makes is a method of the same name, and each of the others is named here.
func TestOperationsAreMethodsOfTheSameName(t *testing.T) {
	t.Parallel()
	methods := reflect.TypeFor[*Client]()
	for id := range wires {
		name := strings.ToUpper(id[:1]) + id[1:]
		if _, ok := methods.MethodByName(name); !ok {
			t.Errorf("Client has no method %s", name)
		}
	}
}

func TestErrorHasTheFieldsOfTheContract(t *testing.T) {
	t.Parallel()
	c := contract(t)
	ours := map[string]string{}
	fieldsOfType(ours, "", "json", reflect.TypeFor[Error]())
	compare(t, "Problem", ours, c.Problem, nil)
	for _, err := range []error{ErrLeaseLost, ErrLeased, ErrEnded, ErrCursorLost, ErrWrongDelivery, ErrScheduleEnded, ErrKeyReused} {
		if kind, ok := err.(*errorKind); !ok || !slices.Contains(c.Codes, kind.code) { //nolint:errorlint // not wrapped
			t.Errorf("%v has a code that the contract does not have", err)
		}
	}
}
