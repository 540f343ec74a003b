package http

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"
	"github.com/go-chi/chi/v5"
	"github.com/google/go-cmp/cmp"

	"github.com/queued/queued/api"
	"github.com/queued/queued/internal/http/bind"
	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/sql"
)

// spec is api/openapi.yaml. TestContractIsValid validates it, which takes as much processor time as a hundred other tests.
var spec = sync.OnceValues(func() (*openapi3.T, error) {
	for _, media := range []string{"text/html", "text/css", "text/javascript", "image/png", "text/event-stream", "application/x-ndjson", "text/csv"} {
		openapi3filter.RegisterBodyDecoder(media, openapi3filter.FileBodyDecoder)
	}
	for _, media := range []string{"application/cloudevents+json", "application/cloudevents-batch+json"} {
		openapi3filter.RegisterBodyDecoder(media, openapi3filter.JSONBodyDecoder)
	}
	return openapi3.NewLoader().LoadFromData(api.OpenAPI)
})

// specRouter finds the operation of a request.
var specRouter = sync.OnceValues(func() (routers.Router, error) {
	doc, err := spec()
	if err != nil {
		return nil, err
	}
	return legacy.NewRouter(doc, openapi3.DisableExamplesValidation())
})

func loadSpec(t *testing.T) *openapi3.T {
	t.Helper()
	doc, err := spec()
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

// operations calls visit for every operation of the contract.
func operations(doc *openapi3.T, visit func(method, path string, op *openapi3.Operation)) {
	paths := doc.Paths.Map()
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		ops := paths[path].Operations()
		for _, method := range slices.Sorted(maps.Keys(ops)) {
			visit(method, path, ops[method])
		}
	}
}

func TestContractIsValid(t *testing.T) {
	pgtest.WithoutRaceDetector(t)
	t.Parallel()
	err := loadSpec(t).Validate(openapi3.NewLoader().Context,
		openapi3.EnableExamplesValidation(), openapi3.EnableSchemaDefaultsValidation(),
		openapi3.EnableSchemaFormatValidation(), openapi3.EnableSchemaPatternValidation(), openapi3.EnableMultiError())
	if err != nil {
		t.Error(err)
	}
}

func TestContractAndServerHaveTheSameRoutes(t *testing.T) {
	t.Parallel()
	routed := routePatterns(t)
	var documented []string
	operations(loadSpec(t), func(method, path string, _ *openapi3.Operation) {
		documented = append(documented, method+" "+path)
	})
	slices.Sort(documented)
	slices.Sort(routed)
	if diff := cmp.Diff(documented, routed); diff != "" {
		t.Errorf("(-contract +server)\n%s", diff)
	}
}

// routePatterns returns every route as its method and pattern.
func routePatterns(t *testing.T) (patterns []string) {
	t.Helper()
	err := chi.Walk(New(Config{}).routes().mux, func(method, route string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		patterns = append(patterns, method+" "+route)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return patterns
}

func TestContractHasAnExampleForEveryBody(t *testing.T) {
	t.Parallel()
	operations(loadSpec(t), func(method, path string, op *openapi3.Operation) {
		if op.Summary == "" || len(op.Tags) != 1 {
			t.Errorf("%s %s has no summary, or not one tag", method, path)
		}
		if op.RequestBody != nil {
			for media, content := range op.RequestBody.Value.Content {
				if len(content.Examples) == 0 {
					t.Errorf("%s %s has no example of the request in %s", method, path, media)
				}
			}
		}
		for status, resp := range op.Responses.Map() {
			for media, content := range resp.Value.Content {
				if len(content.Examples) == 0 {
					t.Errorf("%s %s has no example of %s in %s", method, path, status, media)
				}
			}
		}
		for _, p := range op.Parameters {
			// The page at /docs fills in examples, which is only useful for required parameters.
			if p.Value.Description == "" || (p.Value.Example != nil) != p.Value.Required || p.Value.Examples != nil {
				t.Errorf("%s %s: parameter %s has no description, or is required without an example, or optional with one", method, path, p.Value.Name)
			}
		}
	})
}

// every problem type that a client can get, in the order of the contract.
var kinds = []problem.Type{
	problem.InvalidJSON, problem.InvalidParameter, problem.UnknownParameter, problem.InvalidCursor, problem.InvalidCloudEvent, problem.Unauthorized, problem.ClientCertificate, problem.KeyExpired, problem.KeyRevoked, problem.WebhookRejected, problem.CrossOrigin, problem.Forbidden, problem.NotFound, problem.EventNotFound, problem.RawBodyNotFound,
	problem.ScheduleNotFound, problem.OwnerNotFound, problem.PositionNotFound, problem.SubscriptionNotFound, problem.FilterNotFound, problem.RedriveNotFound, problem.QueueNotFound, problem.QueueNotDeclared, problem.PlacementNotFound, problem.CellNotFound, problem.PushNotFound, problem.KeyNotFound, problem.SourceNotFound, problem.MethodNotAllowed, problem.LeaseLost, problem.EventLeased, problem.EventEnded, problem.EventRequeued, problem.CursorLost, problem.WrongDelivery, problem.ScheduleEnded, problem.RedriveEnded, problem.TooManyRedrives, problem.LastAdminKey, problem.KeyEnded, problem.QueueNotEmpty, problem.QueueInUse, problem.CellInUse, problem.QueueLeased, problem.NotHome, problem.PreconditionFailed, problem.BodyTooLarge, problem.UnsupportedMediaType, problem.HostNotAllowed, problem.ValidationFailed, problem.Unrepresentable, problem.TooDeep,
	problem.BatchTooLarge, problem.KeyReused, problem.DeadLetterChain, problem.FilterRefused, problem.RateLimited, problem.Internal, problem.QueryTimeout, problem.DatabaseUnavailable, problem.Overloaded, problem.Locked, problem.IDsExhausted, problem.SourcePaused, problem.SealingUnavailable, problem.KeyLeft, problem.NotReady,
}

// gatewayKinds are those that only a gateway answers with: see internal/gateway/problem.go.
var gatewayKinds = []problem.Type{{Status: 422, Code: "batch_not_atomic"}, {Status: 409, Code: "several_cells"}, {Status: 502, Code: "outcome_unknown"}, {Status: 503, Code: "cell_unavailable"}}

func TestContractHasEveryCode(t *testing.T) {
	t.Parallel()
	doc := loadSpec(t)
	var codes []any
	for _, k := range slices.Concat(kinds, gatewayKinds) {
		codes = append(codes, k.Code)
		if row := fmt.Sprintf("| %d | `%s` |", k.Status, k.Code); !strings.Contains(doc.Info.Description, row) {
			t.Errorf("the description has no row %q", row)
		}
	}
	if diff := cmp.Diff(codes, doc.Components.Schemas["Problem"].Value.Properties["code"].Value.Enum); diff != "" {
		t.Errorf("(-server +contract)\n%s", diff)
	}
}

// fieldsOf returns the fields of a Req.
func fieldsOf[Req any]() []bind.Field { return bind.New[Req](testLimits).Fields }

// requests is what each operation decodes.
var requests = map[string][]bind.Field{
	"insert":          fieldsOf[insertRequest](),
	"insertBatch":     fieldsOf[insertBatchRequest](),
	"postCloudEvents": fieldsOf[postCloudEventsRequest](),
	"listEvents":      fieldsOf[listEventsRequest](),
	"getEvent":        fieldsOf[getEventRequest](),
	"claim":           fieldsOf[claimRequest](),
	"ack":             fieldsOf[ackRequest](),
	"ackBatch":        fieldsOf[ackBatchRequest](),
	"ackWithResult":   fieldsOf[ackWithResultRequest](),
	"listAttempts":    fieldsOf[eventRequest](),
	"getRawBody":      fieldsOf[eventRequest](),
	"nack":            fieldsOf[nackRequest](),
	"extendBatch":     fieldsOf[extendBatchRequest](),
	"release":         fieldsOf[releaseRequest](),
	"releaseBatch":    fieldsOf[releaseBatchRequest](),
	"extend":          fieldsOf[extendRequest](),
	"sweep":           fieldsOf[sweepRequest](),
	"listHistory":     fieldsOf[listHistoryRequest](),
	"historyStats":    fieldsOf[historyStatsRequest](),
	"historyErrors":   fieldsOf[historyErrorsRequest](),
	"requeue":         fieldsOf[eventRequest](),
	"requeueMatching": fieldsOf[requeueMatchingRequest](),
	"listQueues":      fieldsOf[listQueuesRequest](),
	"getQueue":        fieldsOf[queueRequest](),
	"queueStats":      fieldsOf[queueSeriesRequest](),
	"listGroups":      fieldsOf[listGroupsRequest](),
	"getGroup":        fieldsOf[groupRequest](),
	"putGroup":        fieldsOf[putGroupRequest](),
	"deleteGroup":     fieldsOf[deleteGroupRequest](),
	"unblockGroup":    fieldsOf[unblockGroupRequest](),
	"queuesOverview":  fieldsOf[queuesOverviewRequest](),
	"putQueue":        withOptionalMembers(fieldsOf[putQueueRequest]()), // both have one schema, and a patch may leave anything out
	"patchQueue":      withOptionalMembers(fieldsOf[patchQueueRequest]()),
	"deleteQueue":     fieldsOf[deleteQueueRequest](),
	"pauseQueue":      fieldsOf[queueRequest](),
	"resumeQueue":     fieldsOf[queueRequest](),
	"purgeQueue":      fieldsOf[queueRequest](),
	"moveEvents":      fieldsOf[moveEventsRequest](),
	"runEvent":        fieldsOf[runEventRequest](),
	"runQueue":        fieldsOf[runQueueRequest](),
	"listExecutions":  fieldsOf[listExecutionsRequest](),
	"listWorkers":     fieldsOf[listWorkersRequest](),
	"listHolders":     fieldsOf[listHoldersRequest](),
	"listProcesses":   fieldsOf[noRequest](),

	"listQueueCopies": fieldsOf[listQueueCopiesRequest](),
	"putQueueCopies":  fieldsOf[putQueueCopiesRequest](),
	"leaveKeys":       fieldsOf[leaveKeysRequest](),
	"listCells":       fieldsOf[noRequest](),
	"putCell":         fieldsOf[putCellRequest](),
	"deleteCell":      fieldsOf[deleteCellRequest](),
	"insertForwarded": fieldsOf[insertForwardedRequest](),
	"listCellQueues":  fieldsOf[listCellQueuesRequest](),
	"listKeyCopies":   fieldsOf[listKeyCopiesRequest](),
	"putKeyCopies":    fieldsOf[putKeyCopiesRequest](),
	"putPlacement":    fieldsOf[putPlacementRequest](),
	"placeNewQueue":   fieldsOf[placeNewQueueRequest](),
	"drainPlacement":  fieldsOf[drainPlacementRequest](),
	"deletePlacement": fieldsOf[deletePlacementRequest](),
	"listPlacements":  fieldsOf[listPlacementsRequest](),

	"putPush":            fieldsOf[putPushRequest](),
	"getPush":            fieldsOf[queueRequest](),
	"deletePush":         fieldsOf[deletePushRequest](),
	"rotatePushSecret":   fieldsOf[rotatePushSecretRequest](),
	"listPushDeliveries": fieldsOf[listPushDeliveriesRequest](),
	"testPush":           fieldsOf[testPushRequest](),
	"enablePush":         fieldsOf[openQueueRequest](),

	"createSchedule":  fieldsOf[createScheduleRequest](),
	"listSchedules":   fieldsOf[listSchedulesRequest](),
	"previewSchedule": fieldsOf[previewScheduleRequest](),
	"getSchedule":     fieldsOf[scheduleRequest](),
	"patchSchedule":   fieldsOf[patchScheduleRequest](),
	"deleteSchedule":  fieldsOf[deleteScheduleRequest](),
	"pauseSchedule":   fieldsOf[scheduleRequest](),
	"resumeSchedule":  fieldsOf[scheduleRequest](),
	"runSchedule":     fieldsOf[scheduleRequest](),
	"listOccurrences": fieldsOf[listOccurrencesRequest](),
	"listOwners":      fieldsOf[paging](),
	"putOwner":        fieldsOf[putOwnerRequest](),
	"getOwner":        fieldsOf[ownerRequest](),
	"deleteOwner":     fieldsOf[deleteOwnerRequest](),

	"publish":        fieldsOf[publishRequest](),
	"publishBatch":   fieldsOf[publishBatchRequest](),
	"listTopics":     fieldsOf[paging](),
	"match":          fieldsOf[matchRequest](),
	"readLog":        fieldsOf[readLogRequest](),
	"stream":         fieldsOf[streamRequest](),
	"getPublished":   fieldsOf[positionRequest](),
	"getLogSettings": fieldsOf[noRequest](),
	"putLogSettings": fieldsOf[putLogSettingsRequest](),

	"createRedrive": fieldsOf[createRedriveRequest](),
	"listRedrives":  fieldsOf[listRedrivesRequest](),
	"getRedrive":    fieldsOf[redriveRequest](),
	"pauseRedrive":  fieldsOf[redriveRequest](),
	"resumeRedrive": fieldsOf[redriveRequest](),
	"cancelRedrive": fieldsOf[redriveRequest](),

	"listSubscriptions":  fieldsOf[paging](),
	"putSubscription":    fieldsOf[putSubscriptionRequest](),
	"getSubscription":    fieldsOf[subscriptionRequest](),
	"deleteSubscription": fieldsOf[deleteSubscriptionRequest](),
	"putFilter":          fieldsOf[putFilterRequest](),
	"deleteFilter":       fieldsOf[filterRequest](),
	"readSubscription":   fieldsOf[readSubscriptionRequest](),
	"commitCursor":       fieldsOf[commitCursorRequest](),
	"seekSubscription":   fieldsOf[seekSubscriptionRequest](),
	"replaySubscription": fieldsOf[replaySubscriptionRequest](),
	"pauseSubscription":  fieldsOf[subscriptionRequest](),
	"resumeSubscription": fieldsOf[subscriptionRequest](),
	"streamSubscription": fieldsOf[streamSubscriptionRequest](),

	"createStreamToken": fieldsOf[createStreamTokenRequest](),

	"listSources":          fieldsOf[listSourcesRequest](),
	"putSource":            fieldsOf[putSourceRequest](),
	"getSource":            fieldsOf[sourceRequest](),
	"deleteSource":         fieldsOf[deleteSourceRequest](),
	"listSourceDeliveries": fieldsOf[listSourceDeliveriesRequest](),
	"testSource":           fieldsOf[testSourceRequest](),
	"shakeHands":           fieldsOf[handshakeRequest](),

	"createKey": fieldsOf[createKeyRequest](),
	"listKeys":  fieldsOf[paging](),
	"getOwnKey": fieldsOf[noRequest](),
	"getKey":    fieldsOf[keyRequest](),
	"patchKey":  fieldsOf[patchKeyRequest](),
	"rotateKey": fieldsOf[rotateKeyRequest](),
	"revokeKey": fieldsOf[keyRequest](),
	"listAudit": fieldsOf[listAuditRequest](),
}

// withOptionalMembers returns fields whose members can all be left out.
func withOptionalMembers(fields []bind.Field) []bind.Field {
	for i := range fields {
		for j := range fields[i].Members {
			fields[i].Members[j].Required = false
		}
		withOptionalMembers(fields[i].Members)
	}
	return fields
}

func TestContractHasTheRequestFieldsOfTheServer(t *testing.T) {
	t.Parallel()
	operations(loadSpec(t), func(_, path string, op *openapi3.Operation) {
		server := make(map[string]string)
		takesObject := false
		for _, f := range requests[op.OperationID] {
			if f.In != "path" && f.In != "body" {
				describe(server, f.Name, f)
			}
			takesObject = takesObject || f.In == "json"
		}
		contract := make(map[string]string)
		for _, param := range op.Parameters {
			if v := param.Value; v.In == "query" || v.In == "header" {
				schema := v.Schema
				if schema == nil {
					schema = v.Content["application/json"].Schema
				}
				describeSchema(contract, v.Name, schema, v.Required)
			}
		}
		if op.RequestBody != nil && takesObject {
			body := op.RequestBody.Value.Content["application/json"].Schema.Value
			for name, schema := range body.Properties {
				describeSchema(contract, name, schema, slices.Contains(body.Required, name))
			}
		}
		if diff := cmp.Diff(server, contract); diff != "" {
			t.Errorf("%s %s (-server +contract)\n%s", op.OperationID, path, diff)
		}
	})
}

// describe records whether a field of the server is required, its default and, for an integer, its bounds.
func describe(into map[string]string, name string, f bind.Field) {
	said := fmt.Sprintf("required=%t", f.Required)
	if f.Default != "" {
		said += " default=" + text(f.Default)
	}
	for rule := range strings.SplitSeq(f.Rules, ",") {
		if bound, limit, _ := strings.Cut(rule, "="); bound == "min" || bound == "max" {
			if _, err := strconv.Atoi(limit); err == nil {
				said += " " + bound + "=" + limit
			}
		}
		if names, ok := strings.CutPrefix(rule, "oneof="); ok {
			said += " " + names
		}
	}
	into[name] = said
	members := f.Members
	if f.Element != nil {
		if members = f.Element.Members; members == nil {
			describe(into, name+"/*", *f.Element)
		}
	}
	for _, part := range members {
		describe(into, name+"/"+part.Name, part)
	}
}

// describeSchema records the same for a field of the contract.
func describeSchema(into map[string]string, name string, schema *openapi3.SchemaRef, required bool) {
	s := schema.Value
	said := fmt.Sprintf("required=%t", required)
	if s.Default != nil && !slices.Contains([]string{"false", "0", "0s"}, text(s.Default)) { // the same as no default
		said += " default=" + text(s.Default)
	}
	if least := max(s.MinLength, s.MinItems); least > 0 {
		said += fmt.Sprintf(" min=%d", least)
	}
	if s.Min != nil {
		said += fmt.Sprintf(" min=%.0f", *s.Min)
	}
	if s.Max != nil {
		said += fmt.Sprintf(" max=%.0f", *s.Max)
	}
	if s.MaxLength != nil {
		said += fmt.Sprintf(" max=%d", *s.MaxLength)
	}
	if s.MaxItems != nil && len(s.Items.Value.Properties) == 0 { // the number of structs is limited by the configuration
		said += fmt.Sprintf(" max=%d", *s.MaxItems)
	}
	for _, value := range s.Enum {
		if value != nil {
			said += fmt.Sprintf(" %v", value)
		}
	}
	into[name] = said
	parts := s
	if s.Items != nil {
		parts = s.Items.Value
		if len(parts.Properties) == 0 {
			describeSchema(into, name+"/*", s.Items, false)
		}
	}
	for _, part := range slices.Sorted(maps.Keys(parts.Properties)) {
		describeSchema(into, name+"/"+part, parts.Properties[part], slices.Contains(parts.Required, part))
	}
}

// text formats a default; durations are in Go's format.
func text(v any) string {
	if d, err := time.ParseDuration(fmt.Sprint(v)); err == nil {
		return d.String()
	}
	if n, ok := v.(float64); ok { // as JSON numbers are read
		return strconv.FormatFloat(n, 'f', -1, 64)
	}
	return fmt.Sprint(v)
}

func TestContractHasTheCurrentVersion(t *testing.T) {
	t.Parallel()
	if got := loadSpec(t).Info.Version; got != sql.Version() {
		t.Errorf("api/openapi.yaml has the version %s, the program %s", got, sql.Version())
	}
}
