package http

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/go-cmp/cmp"

	"github.com/queued/queued/internal/http/bind"
	"github.com/queued/queued/sql"
)

// requests is what each operation decodes.
var requests = map[string]request{
	"insert":          requestOf[insertRequest](),
	"insertBatch":     requestOf[insertBatchRequest](),
	"listEvents":      requestOf[listEventsRequest](),
	"getEvent":        requestOf[eventRequest](),
	"claim":           requestOf[claimRequest](),
	"ack":             requestOf[ackRequest](),
	"ackBatch":        requestOf[ackBatchRequest](),
	"ackWithResult":   requestOf[ackWithResultRequest](),
	"listAttempts":    requestOf[eventRequest](),
	"nack":            requestOf[nackRequest](),
	"extend":          requestOf[extendRequest](),
	"sweep":           requestOf[sweepRequest](),
	"listHistory":     requestOf[listHistoryRequest](),
	"historyStats":    requestOf[historyStatsRequest](),
	"requeue":         requestOf[eventRequest](),
	"requeueMatching": requestOf[requeueMatchingRequest](),
	"listQueues":      requestOf[listQueuesRequest](),
	"getQueue":        requestOf[queueRequest](),
	"putQueue":        requestOf[putQueueRequest](),
	"pauseQueue":      requestOf[queueRequest](),
	"resumeQueue":     requestOf[queueRequest](),
	"purgeQueue":      requestOf[queueRequest](),
	"listExecutions":  requestOf[listExecutionsRequest](),
	"listProcesses":   requestOf[noRequest](),

	"createSchedule":  requestOf[createScheduleRequest](),
	"listSchedules":   requestOf[listSchedulesRequest](),
	"previewSchedule": requestOf[previewScheduleRequest](),
	"getSchedule":     requestOf[scheduleRequest](),
	"patchSchedule":   requestOf[patchScheduleRequest](),
	"deleteSchedule":  requestOf[deleteScheduleRequest](),
	"pauseSchedule":   requestOf[scheduleRequest](),
	"resumeSchedule":  requestOf[scheduleRequest](),
	"runSchedule":     requestOf[scheduleRequest](),
	"listOccurrences": requestOf[listOccurrencesRequest](),
	"listOwners":      requestOf[listOwnersRequest](),
	"putOwner":        requestOf[putOwnerRequest](),
	"getOwner":        requestOf[ownerRequest](),
	"deleteOwner":     requestOf[deleteOwnerRequest](),
}

// A request is what an operation decodes: its fields, and its value when none is given.
type request struct {
	*bind.Binding
	empty reflect.Value
}

func requestOf[Req any]() request {
	return request{bind.New[Req](testLimits), withDefaults(reflect.TypeFor[Req]())}
}

func withDefaults(t reflect.Type) reflect.Value {
	v := reflect.New(t)
	if d, ok := v.Interface().(bind.Defaulter); ok {
		d.SetDefaults()
	}
	return v.Elem()
}

func TestContractHasTheFieldsOfEveryRequestAsTheServerTakesThem(t *testing.T) {
	t.Parallel()
	operations(loadSpec(t), func(_, path string, op *openapi3.Operation) {
		req, ok := requests[op.OperationID]
		if !ok {
			req = requestOf[noRequest]()
		}
		server := make(map[string]string)
		takesObject := false
		for _, f := range slices.Concat(req.Params, req.Body) {
			if f.In != "path" {
				describe(server, f.Name, f, req.empty.FieldByIndex(f.Index))
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

// describe notes what the server says of a field: whether it is required, its default and, of an integer, its bounds.
func describe(into map[string]string, name string, f bind.Field, initial reflect.Value) {
	said := fmt.Sprintf("required=%t", f.Required)
	if initial.IsValid() && !initial.IsZero() {
		said += " default=" + text(reflect.Indirect(initial).Interface())
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
			describe(into, name+"/*", *f.Element, reflect.Value{})
		}
	}
	if members != nil {
		inner := initial.Type().Elem() // of a slice or of a pointer
		for _, part := range members {
			describe(into, name+"/"+part.Name, part, withDefaults(inner).FieldByIndex(part.Index))
		}
	}
}

// describeSchema notes the same as the contract has it.
func describeSchema(into map[string]string, name string, schema *openapi3.SchemaRef, required bool) {
	s := schema.Value
	said := fmt.Sprintf("required=%t", required)
	if s.Default != nil && !slices.Contains([]string{"false", "0", "0s"}, text(s.Default)) { // which fields are without a default, too
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
	if s.MaxItems != nil && len(s.Items.Value.Properties) == 0 { // how many structs there may be is a limit of the server's
		said += fmt.Sprintf(" max=%d", *s.MaxItems)
	}
	for _, value := range s.Enum {
		said += fmt.Sprintf(" %v", value)
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

// text writes a default, durations as Go does.
func text(v any) string {
	if d, err := time.ParseDuration(fmt.Sprint(v)); err == nil {
		return d.String()
	}
	return fmt.Sprint(v)
}

func TestContractSpeaksOfThisVersion(t *testing.T) {
	t.Parallel()
	if got := loadSpec(t).Info.Version; got != sql.Version() {
		t.Errorf("api/openapi.yaml is of version %s, the program of %s", got, sql.Version())
	}
}
