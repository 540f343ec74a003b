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

	"github.com/queued/queued/sql"
)

// requests is what each operation decodes.
var requests = map[string]*plan{
	"insert":          planOf[insertRequest](),
	"insertBatch":     planOf[insertBatchRequest](),
	"listEvents":      planOf[listEventsRequest](),
	"getEvent":        planOf[getEventRequest](),
	"claim":           planOf[claimRequest](),
	"ack":             planOf[ackRequest](),
	"ackBatch":        planOf[ackBatchRequest](),
	"ackWithResult":   planOf[ackWithResultRequest](),
	"listAttempts":    planOf[listAttemptsRequest](),
	"nack":            planOf[nackRequest](),
	"extend":          planOf[extendRequest](),
	"sweep":           planOf[sweepRequest](),
	"listHistory":     planOf[listHistoryRequest](),
	"historyStats":    planOf[historyStatsRequest](),
	"requeue":         planOf[requeueRequest](),
	"requeueMatching": planOf[requeueMatchingRequest](),
	"listQueues":      planOf[listQueuesRequest](),
	"getQueue":        planOf[queueRequest](),
	"putQueue":        planOf[putQueueRequest](),
	"pauseQueue":      planOf[queueRequest](),
	"resumeQueue":     planOf[queueRequest](),
	"purgeQueue":      planOf[queueRequest](),
	"listExecutions":  planOf[listExecutionsRequest](),
	"listProcesses":   planOf[listProcessesRequest](),

	"createSchedule":  planOf[createScheduleRequest](),
	"listSchedules":   planOf[listSchedulesRequest](),
	"previewSchedule": planOf[previewScheduleRequest](),
	"getSchedule":     planOf[scheduleRequest](),
	"patchSchedule":   planOf[patchScheduleRequest](),
	"deleteSchedule":  planOf[deleteScheduleRequest](),
	"pauseSchedule":   planOf[scheduleRequest](),
	"resumeSchedule":  planOf[scheduleRequest](),
	"runSchedule":     planOf[scheduleRequest](),
	"listOccurrences": planOf[listOccurrencesRequest](),
	"listOwners":      planOf[listOwnersRequest](),
	"putOwner":        planOf[putOwnerRequest](),
	"getOwner":        planOf[ownerRequest](),
	"deleteOwner":     planOf[deleteOwnerRequest](),
}

func TestContractHasTheFieldsOfEveryRequestAsTheServerTakesThem(t *testing.T) {
	t.Parallel()
	operations(loadSpec(t), func(_, path string, op *openapi3.Operation) {
		p := requests[op.OperationID]
		if p == nil {
			p = new(plan)
		}
		server := make(map[string]string)
		for _, f := range slices.Concat(p.query, p.header, p.json) {
			describe(server, f.name, f)
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
		if op.RequestBody != nil && p.event == nil {
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
func describe(into map[string]string, name string, f field) {
	said := fmt.Sprintf("required=%t", f.required)
	if f.initial.IsValid() {
		said += " default=" + text(reflect.Indirect(f.initial).Interface())
	}
	for rule := range strings.SplitSeq(f.rules, ",") {
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
	for _, part := range slices.Concat(f.items, f.members) {
		describe(into, name+"/"+part.name, part)
	}
	if f.element != nil {
		describe(into, name+"/*", *f.element)
	}
}

// describeSchema notes the same as the contract has it.
func describeSchema(into map[string]string, name string, schema *openapi3.SchemaRef, required bool) {
	s := schema.Value
	said := fmt.Sprintf("required=%t", required)
	if s.Default != nil && s.Default != false { // which is what a bool is anyway
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
