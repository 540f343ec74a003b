package client

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/go-cmp/cmp"

	"github.com/queued/queued/api"
)

// A wire is what a method sends and decodes; nil: nothing, or a payload of the caller's.
type wire struct{ query, request, response any }

// wires has every operation of the contract that a method makes.
var wires = map[string]wire{
	"insert":       {query: NewEvent{}, response: Inserted{}},
	"insertBatch":  {request: insertBatchRequest{}, response: insertedBatch{}},
	"listEvents":   {query: EventFilter{}, response: eventPage{}},
	"getEvent":     {response: Event{}},
	"listAttempts": {response: attemptList{}},
	"claim":        {request: ClaimParams{}, response: claimedEvents{}},
	"ack": {query: struct {
		Receipt string `query:"receipt"`
	}{}},
	"ackWithResult":   {request: ackRequest{}, response: ackedEvent{}},
	"ackBatch":        {request: ackBatchRequest{}, response: ackResults{}},
	"nack":            {request: NackParams{}, response: Nacked{}},
	"extend":          {request: extendRequest{}, response: extendedLease{}},
	"sweep":           {request: SweepParams{}, response: sweptEvents{}},
	"listHistory":     {query: HistoryFilter{}, response: eventPage{}},
	"historyStats":    {query: HistoryStatsParams{}, response: historyStats{}},
	"requeue":         {response: requeuedEvent{}},
	"requeueMatching": {request: RequeueParams{}, response: Requeued{}},
	"listQueues":      {query: pageSize{}, response: queuePage{}},
	"getQueue":        {response: Policy{}},
	"putQueue":        {request: QueueSettings{}, response: Policy{}},
	"pauseQueue":      {response: Policy{}},
	"resumeQueue":     {response: Policy{}},
	"purgeQueue":      {response: purgedEvents{}},
	"moveEvents":      {request: MoveParams{}, response: movedEvents{}},
	"listExecutions":  {query: ExecutionFilter{}, response: executionList{}},
	"listProcesses":   {response: processList{}},
	"showVersion":     {response: Version{}},
	"livez":           {},
	"readyz":          {},

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

	"putPush":          {request: PushSettings{}, response: Push{}},
	"getPush":          {response: Push{}},
	"deletePush":       {},
	"rotatePushSecret": {request: rotateSecretRequest{}, response: Push{}},
	"testPush":         {response: PushTest{}},
	"enablePush":       {response: Push{}},
	"listSources":      {query: pageSize{}, response: sourcePage{}},
	"putSource":        {request: SourceSettings{}, response: Source{}},
	"getSource":        {response: Source{}},
	"deleteSource":     {},
	"testSource":       {request: TrialDelivery{}, response: TriedDelivery{}},

	"createKey": {request: NewKey{}, response: IssuedKey{}},
	"listKeys":  {query: pageSize{}, response: keyPage{}},
	"getOwnKey": {response: OwnKey{}},
	"getKey":    {response: AccessKey{}},
	"patchKey":  {response: AccessKey{}}, // the request is a map
	"revokeKey": {},
	"rotateKey": {request: rotateRequest{}, response: IssuedKey{}},
	"listAudit": {query: AuditFilter{}, response: auditPage{}},

	"publish":           {query: NewPublication{}, response: Published{}},
	"publishBatch":      {request: publishBatchRequest{}, response: publishedBatch{}},
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
		"listEvents":        {"events/receipt", "events/outcome", "events/status", "events/finished_at", "events/first_attempted_at", "events/last_attempted_at", "events/processing_ms", "events/result", "events/retryable", "events/requeued_as"},
		"claim":             {"events/state", "events/error_count", "events/outcome", "events/status", "events/finished_at", "events/first_attempted_at", "events/last_attempted_at", "events/processing_ms", "events/result", "events/retryable", "events/requeued_as"},
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

var contract = sync.OnceValues(func() (*openapi3.T, error) { return openapi3.NewLoader().LoadFromData(api.OpenAPI) })

// An operation is one that has a method, with the parameters of its path, too.
type operation struct {
	*openapi3.Operation
	params openapi3.Parameters
	wire   wire
}

// operations returns every operation that has a method.
func operations(t *testing.T) (list []operation) {
	t.Helper()
	doc, err := contract()
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]bool)
	for _, item := range doc.Paths.Map() {
		for _, op := range item.Operations() {
			if w, ok := wires[op.OperationID]; ok {
				found[op.OperationID] = true
				list = append(list, operation{op, slices.Concat(item.Parameters, op.Parameters), w})
			}
		}
	}
	for id := range wires {
		if !found[id] {
			t.Errorf("the contract has no operation %s", id)
		}
	}
	return list
}

// responses calls visit for the content of every response that is no error.
func (op operation) responses(visit func(*openapi3.MediaType)) {
	for status, resp := range op.Responses.Map() {
		if content := resp.Value.Content["application/json"]; content != nil && status < "300" {
			visit(content)
		}
	}
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
	case reflect.TypeFor[json.RawMessage](), reflect.TypeFor[Place]():
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
		for field := range t.Fields() {
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

// fieldsOfSchema adds what each field of a schema is.
func fieldsOfSchema(into map[string]string, path string, ref *openapi3.SchemaRef) {
	schema := ref.Value
	for _, part := range slices.Concat(schema.AllOf, schema.OneOf) {
		if len(part.Value.Required) > 0 && part.Value.Type == nil && part.Value.Properties == nil {
			continue // says only what is required
		}
		if !part.Value.Type.Is("null") {
			fieldsOfSchema(into, path, part)
		}
	}
	if schema.Items != nil {
		fieldsOfSchema(into, path, schema.Items)
	}
	for name, property := range schema.Properties {
		fieldsOfSchema(into, join(path, name), property)
	}
	types := slices.DeleteFunc(slices.Clone(schema.Type.Slice()), func(name string) bool { return name == "null" })
	switch {
	case strings.HasPrefix(schema.Pattern, "^[-+]?(0|"):
		into[path] = "duration"
	case schema.Format == "date-time":
		into[path] = "time"
	case schema.Const != nil && len(types) == 0:
		into[path] = "string"
	case len(types) == 1:
		into[path] = types[0]
	case len(types) > 1:
		into[path] = "any"
	case schema.OneOf != nil && into[path] == "":
		into[path] = "any"
	}
}

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
	if diff := cmp.Diff(ours, theirs); diff != "" {
		t.Errorf("%s (-client +contract)\n%s", what, diff)
	}
}

func TestTypesHaveTheFieldsOfTheContract(t *testing.T) {
	t.Parallel()
	for _, op := range operations(t) {
		t.Run(op.OperationID, func(t *testing.T) {
			t.Parallel()
			ours, theirs := queryFields(op)
			compare(t, "query", ours, theirs, notSent[op.OperationID])
			if op.wire.request != nil {
				ours, theirs := map[string]string{}, map[string]string{}
				fieldsOfType(ours, "", "json", reflect.TypeOf(op.wire.request))
				fieldsOfSchema(theirs, "", op.RequestBody.Value.Content["application/json"].Schema)
				compare(t, "request", ours, theirs, foreign[op.OperationID])
			}
			if op.wire.response != nil {
				ours, theirs := map[string]string{}, map[string]string{}
				fieldsOfType(ours, "", "json", reflect.TypeOf(op.wire.response))
				op.responses(func(content *openapi3.MediaType) { fieldsOfSchema(theirs, "", content.Schema) })
				compare(t, "response", ours, theirs, foreign[op.OperationID])
			}
		})
	}
}

// queryFields returns the parameters of the query that the client has and those of the contract.
func queryFields(op operation) (ours, theirs map[string]string) {
	ours, theirs = map[string]string{}, map[string]string{}
	if op.wire.query != nil {
		fieldsOfType(ours, "", "query", reflect.TypeOf(op.wire.query))
		delete(ours, "")
		for field := range reflect.TypeOf(op.wire.query).Fields() {
			if field.Type == reflect.TypeFor[Place]() {
				ours["after"], ours["at"] = "string", "time"
			}
		}
	}
	for _, param := range op.params {
		if p := param.Value; p.In == "query" && p.Name != "cursor" {
			schema := p.Schema
			if schema == nil {
				schema = p.Content["application/json"].Schema
			}
			fieldsOfSchema(theirs, p.Name, schema)
		}
	}
	return ours, theirs
}

// The example responses of the contract decode, and encode to the same.
func TestResponsesOfTheContractSurviveDecoding(t *testing.T) {
	t.Parallel()
	decoded := 0
	for _, op := range operations(t) {
		op.responses(func(content *openapi3.MediaType) {
			if op.wire.response == nil {
				return
			}
			for name, example := range content.Examples {
				text, err := json.Marshal(example.Value.Value)
				if err != nil {
					t.Fatal(err)
				}
				value := reflect.New(reflect.TypeOf(op.wire.response))
				if err := json.Unmarshal(text, value.Interface()); err != nil {
					t.Errorf("%s, %s: %v", op.OperationID, name, err)
					continue
				}
				again, err := json.Marshal(value.Interface())
				if err != nil {
					t.Fatal(err)
				}
				decoded++
				if diff := cmp.Diff(normal(t, text), normal(t, again)); diff != "" {
					t.Errorf("%s, %s (-contract +client)\n%s", op.OperationID, name, diff)
				}
			}
		})
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

func TestErrorHasTheFieldsOfAProblem(t *testing.T) {
	t.Parallel()
	doc, err := contract()
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := map[string]string{}, map[string]string{}
	fieldsOfType(ours, "", "json", reflect.TypeFor[Error]())
	fieldsOfSchema(theirs, "", doc.Components.Schemas["Problem"])
	compare(t, "Problem", ours, theirs, nil)
	codes := fmt.Sprint(doc.Components.Schemas["Problem"].Value.Properties["code"].Value.Enum)
	for _, err := range []error{ErrLeaseLost, ErrCursorLost, ErrWrongDelivery, ErrScheduleEnded, ErrKeyReused} {
		if kind, ok := err.(*errorKind); !ok || !strings.Contains(codes, kind.code) { //nolint:errorlint // not wrapped
			t.Errorf("%v has a code that the contract does not have", err)
		}
	}
}
