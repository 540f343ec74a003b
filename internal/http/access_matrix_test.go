package http

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/go-cmp/cmp"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/http/problem"
)

// scopesOfContract returns the scope that each operation needs according to the contract, by method and pattern.
func scopesOfContract(t *testing.T) map[string]access.Scope {
	t.Helper()
	scopes := make(map[string]access.Scope)
	operations(loadSpec(t), func(method, path string, op *openapi3.Operation) {
		switch {
		case op.Security == nil:
			t.Errorf("%s %s has no security", method, path)
		case len(*op.Security) == 0:
			scopes[method+" "+path] = public
		default:
			scope := anyKey
			if named := (*op.Security)[0]["bearer"]; len(named) == 1 {
				scope = access.Scope(named[0])
			}
			scopes[method+" "+path] = scope
		}
	})
	return scopes
}

func TestContractAndServerNeedTheSameScopes(t *testing.T) {
	t.Parallel()
	if diff := cmp.Diff(scopesOfContract(t), New(Config{}).routes().scopes); diff != "" {
		t.Errorf("(-contract +server)\n%s", diff)
	}
}

// endedKeys returns the texts of a key that has expired and of one that was revoked.
func endedKeys(h *environment) (expired, revoked string) {
	h.t.Helper()
	expired = h.createKey(access.CreateParams{Scopes: []access.Scope{access.Admin}})
	revoked = h.createKey(access.CreateParams{Scopes: []access.Scope{access.Admin}})
	if _, err := h.access.Update(h.t.Context(), expired[3:11], access.Change{ExpiresAt: new(new(time.Now().Add(-time.Minute)))}, nil); err != nil {
		h.t.Fatal(err)
	}
	h.revokeKey(revoked[3:11])
	h.awaitRefused(expired, access.ErrExpired)
	return expired, revoked
}

func TestEveryRouteTakesExactlyTheKeysItShould(t *testing.T) {
	t.Parallel()
	h := setup(t)
	admin := h.createKey(access.CreateParams{Scopes: []access.Scope{access.Admin}})
	expired, revoked := endedKeys(h)
	h.topics.Drain() // so that streams end
	keys := make(map[access.Scope]string)
	for _, scope := range access.Scopes {
		keys[scope] = h.createKey(access.CreateParams{Scopes: []access.Scope{scope}})
	}
	needed := scopesOfContract(t)
	seen := make(map[access.Scope]bool)
	for _, r := range everyRoute(t) {
		scope := needed[r.method+" "+r.pattern]
		if r.isWebhook() {
			h.key(revoked).try(r.method, r.path, r.body).wantProblem(problem.SourceNotFound)
			continue
		}
		if scope == public {
			h.try(r.method, r.path, r.body).want(http.StatusOK)
			continue
		}
		seen[scope] = true
		h.try(r.method, r.path, r.body).wantProblem(problem.Unauthorized)
		h.key(unknownKey()).try(r.method, r.path, r.body).wantProblem(problem.Unauthorized)
		h.key(admin[:len(admin)-1]+"1").try(r.method, r.path, r.body).wantProblem(problem.Unauthorized)
		h.key(expired).try(r.method, r.path, r.body).wantProblem(problem.KeyExpired)
		h.key(revoked).try(r.method, r.path, r.body).wantProblem(problem.KeyRevoked)
		for has, key := range keys {
			got := h.key(key).try(r.method, r.path, r.body)
			switch {
			case r.id == "revokeKey" || has != access.Admin && scope != anyKey && has != scope:
				if r.id == "revokeKey" && has == access.Admin {
					got.wantProblem(problem.KeyNotFound)
					continue
				}
				if p := got.wantProblem(problem.Forbidden); p.Required == nil || p.Required.Scope != string(scope) {
					t.Errorf("%s with the scope %s: got %s", r.id, has, got.body)
				}
			case r.isAckWithoutReceipt() && has == access.Claim:
				if r.id == "ackBatch" {
					if !strings.Contains(got.want(http.StatusOK).body, `"code":"forbidden"`) {
						t.Errorf("an ack without a receipt returned %s", got.body)
					}
				} else if p := got.wantProblem(problem.Forbidden); p.Required == nil || p.Required.Scope != string(access.Manage) {
					t.Errorf("%s: got %s", r.id, got.body)
				}
			case got.status == http.StatusUnauthorized, got.status == http.StatusForbidden:
				t.Errorf("%s with the scope %s: got %s", r.id, has, got.body)
			}
		}
	}
	for _, scope := range access.Scopes {
		if !seen[scope] {
			t.Errorf("no route needs the scope %s", scope)
		}
	}
	h.key(keys[access.Read]).try("GET", "/nothing", "").wantProblem(problem.NotFound)
	if got := h.key(keys[access.Claim]).try("POST", "/claim", `{"queue":"empty","acks":[{"id":1}]}`).want(http.StatusOK); !strings.Contains(got.body, `"code":"forbidden"`) {
		t.Errorf("a claim with an ack without a receipt returned %s", got.body)
	}
}

func (r route) isAckWithoutReceipt() bool {
	return r.id == "ack" || r.id == "ackWithResult" || r.id == "ackBatch"
}

// isBatchOfLeases reports whether a route answers for each event of others that there is none.
func (r route) isBatchOfLeases() bool {
	return r.id == "ackBatch" || r.id == "extendBatch" || r.id == "releaseBatch"
}

// Answers to a restricted key whose request is about something that it may not use.
const (
	refused   = http.StatusForbidden // it names a queue or a topic
	notFound  = http.StatusNotFound  // it has an id or a name that stands for something of others: the same as when there is nothing
	filtered  = http.StatusOK        // it asks for whatever there is
	global    = -1                   // it is about everything, and refused also without any names
	unlimited = -2                   // it is about nothing of anybody
)

// restrictedCalls has a request of each operation: SIDE is "in" or "out", and words in capitals are what is made for it on that side.
var restrictedCalls = map[string]struct {
	path, body string
	out        int
}{
	"insert":          {"/events?queue=SIDE.q", `{}`, refused},
	"insertBatch":     {"/events/batch", `{"events":[{"event":{},"queue":"in.q"},{"event":{},"queue":"SIDE.q"}]}`, refused},
	"postCloudEvents": {"/cloudevents?queue=SIDE.q", `{"specversion":"1.0","id":"1","source":"/s","type":"t"}`, refused},
	"listEvents":      {"/events", "", filtered},
	"getEvent":        {"/events/EVENT", "", notFound},
	"runEvent":        {"/events/LATER/run", "", notFound},
	"listAttempts":    {"/events/EVENT/attempts", "", notFound},
	"getRawBody":      {"/events/RAW/raw", "", notFound},
	"claim":           {"/claim", `{"queue":"SIDE.q"}`, refused},
	"ack":             {"/events/LEASED?receipt=RECEIPT", "", notFound},
	"ackWithResult":   {"/events/LEASED/ack", `{"receipt":"RECEIPT"}`, notFound},
	"ackBatch":        {"/ack", `{"events":[{"id":LEASED,"receipt":"RECEIPT"}]}`, filtered},
	"nack":            {"/events/LEASED/nack", `{"receipt":"RECEIPT"}`, notFound},
	"extend":          {"/events/LEASED/extend", `{"receipt":"RECEIPT"}`, notFound},
	"extendBatch":     {"/extend", `{"events":[{"id":LEASED,"receipt":"RECEIPT"}]}`, filtered},
	"release":         {"/events/LEASED/release", `{"receipt":"RECEIPT"}`, notFound},
	"releaseBatch":    {"/release", `{"events":[{"id":LEASED,"receipt":"RECEIPT"}]}`, filtered},
	"sweep":           {"/sweep", `{"queue":"SIDE.q"}`, refused},
	"listHistory":     {"/history", "", filtered},
	"historyStats":    {"/history/stats?queue=SIDE.q", "", refused},
	"historyErrors":   {"/history/errors?queue=SIDE.q", "", refused},
	"requeue":         {"/history/DONE/requeue", "", notFound},
	"requeueMatching": {"/history/requeue", `{"queue":"SIDE.q"}`, refused},
	"createRedrive":   {"/redrives", `{"filter":{"queue":"in.q"},"to":"SIDE.q"}`, refused},
	"listRedrives":    {"/redrives", "", filtered},
	"getRedrive":      {"/redrives/REDRIVE", "", notFound},
	"pauseRedrive":    {"/redrives/REDRIVE/pause", "", notFound},
	"resumeRedrive":   {"/redrives/REDRIVE/resume", "", notFound},
	"cancelRedrive":   {"/redrives/REDRIVE/cancel", "", notFound},
	"listQueues":      {"/queues", "", filtered},
	"getQueue":        {"/queues/SIDE.q", "", refused},
	"queueStats":      {"/queues/SIDE.q/stats", "", refused},
	"listGroups":      {"/queues/SIDE.q/groups", "", refused},
	"getGroup":        {"/queues/SIDE.q/groups/g", "", refused},
	"putGroup":        {"/queues/SIDE.q/groups/g", `{"concurrency":2}`, refused},
	"deleteGroup":     {"/queues/SIDE.q/groups/g", "", refused},
	"unblockGroup":    {"/queues/SIDE.q/groups/g/unblock", "", refused},
	"queuesOverview":  {"/stats/queues", "", filtered},
	"putQueue":        {"/queues/SIDE.q", "{}", refused},
	"patchQueue":      {"/queues/SIDE.q", "{}", refused},
	"deleteQueue":     {"/queues/UNUSED?purge=true", "", refused},
	"pauseQueue":      {"/queues/SIDE.paused/pause", "", refused},
	"resumeQueue":     {"/queues/SIDE.q/resume", "", refused},
	"purgeQueue":      {"/queues/SIDE.purged/purge", "", refused},
	"moveEvents":      {"/queues/in.q/move", `{"to":"SIDE.moved"}`, refused},
	"runQueue":        {"/queues/SIDE.q/run", "", refused},
	"listExecutions":  {"/stats/executions", "", global},
	"listProcesses":   {"/stats/processes", "", global},
	"listWorkers":     {"/stats/workers", "", filtered},
	"listHolders":     {"/stats/holders", "", filtered},

	"putPush":            {"/queues/SIDE.pushed/push", `{"url":"http://127.0.0.1:1"}`, refused},
	"getPush":            {"/queues/PUSHED/push", "", refused},
	"deletePush":         {"/queues/PUSHED/push", "", refused},
	"rotatePushSecret":   {"/queues/PUSHED/push/secret", "", refused},
	"listPushDeliveries": {"/queues/PUSHED/push/deliveries", "", refused},
	"testPush":           {"/queues/PUSHED/push/test", "", refused},
	"enablePush":         {"/queues/PUSHED/push/enable", "", refused},

	"createSchedule":  {"/schedules", `{"event":{},"queue":"SIDE.q","cron":"@yearly","timezone":"UTC"}`, refused},
	"previewSchedule": {"/schedules/preview", `{"topic":"SIDE.t","cron":"@yearly","timezone":"UTC"}`, refused},
	"listSchedules":   {"/schedules", "", filtered},
	"getSchedule":     {"/schedules/SCHEDULE", "", notFound},
	"patchSchedule":   {"/schedules/SCHEDULE", `{"name":"n"}`, notFound},
	"deleteSchedule":  {"/schedules/SCHEDULE", "", notFound},
	"pauseSchedule":   {"/schedules/SCHEDULE/pause", "", notFound},
	"resumeSchedule":  {"/schedules/SCHEDULE/resume", "", notFound},
	"runSchedule":     {"/schedules/SCHEDULE/run", "", notFound},
	"listOccurrences": {"/schedules/SCHEDULE/occurrences", "", notFound},
	"listOwners":      {"/owners", "", global},
	"putOwner":        {"/owners/ada", `{"timezone":"UTC"}`, global},
	"getOwner":        {"/owners/ada", "", global},
	"deleteOwner":     {"/owners/ada", "", global},

	"publish":        {"/topics/SIDE.t", `{}`, refused},
	"publishBatch":   {"/publish", `{"events":[{"topic":"in.t","event":{}},{"topic":"SIDE.t","event":{}}]}`, refused},
	"listTopics":     {"/topics", "", filtered},
	"match":          {"/match", `{"filter":{"topics":["a"]},"last":1}`, global},
	"readLog":        {"/log", "", filtered},
	"getLogSettings": {"/log/settings", "", global},
	"putLogSettings": {"/log/settings", "{}", global},
	"getPublished":   {"/log/POSITION", "", notFound},
	"stream":         {"/stream?topic=SIDE.*", "", refused},

	"createStreamToken": {"/stream/tokens", `{"topics":["in.t","SIDE.t"]}`, refused},

	"listSubscriptions":  {"/subscriptions", "", filtered},
	"putSubscription":    {"/subscriptions/new", `{"filters":[{"topics":["SIDE.t"]}],"deliver":{"queue":"in.q"}}`, refused},
	"getSubscription":    {"/subscriptions/READER", "", notFound},
	"deleteSubscription": {"/subscriptions/READER", "", notFound},
	"putFilter":          {"/subscriptions/READER/filters/more", `{"topics":["in.more"]}`, notFound},
	"deleteFilter":       {"/subscriptions/READER/filters/f", "", notFound},
	"readSubscription":   {"/subscriptions/READER/read", "", notFound},
	"commitCursor":       {"/subscriptions/READER/commit", `{"cursor":"AAcBAgOBgICAEBckJ9AG-Q"}`, notFound},
	"seekSubscription":   {"/subscriptions/READER/seek", `{"to":"latest"}`, notFound},
	"replaySubscription": {"/subscriptions/DELIVERED/replay", `{"from":"latest"}`, notFound},
	"pauseSubscription":  {"/subscriptions/READER/pause", "", notFound},
	"resumeSubscription": {"/subscriptions/READER/resume", "", notFound},
	"streamSubscription": {"/subscriptions/READER/stream", "", notFound},

	"listSources":          {"/sources", "", filtered},
	"putSource":            {"/sources/SIDE.new", `{"kind":"token","queue":"SIDE.q","secrets":["s"]}`, refused},
	"getSource":            {"/sources/SOURCE", "", notFound},
	"deleteSource":         {"/sources/SOURCE", "", notFound},
	"listSourceDeliveries": {"/sources/SOURCE/deliveries", "", notFound},
	"testSource":           {"/sources/SOURCE/test", "{}", notFound},

	"createKey": {"/keys", `{"name":"n","scopes":["read"]}`, global},
	"listKeys":  {"/keys", "", global},
	"getOwnKey": {"/keys/self", "", unlimited},
	"getKey":    {"/keys/k3x7q2ab", "", global},
	"patchKey":  {"/keys/k3x7q2ab", `{}`, global},
	"rotateKey": {"/keys/k3x7q2ab/rotate", "", global},
	"revokeKey": {"/keys/k3x7q2ab", "", global},
	"listAudit": {"/audit", "", global},

	"getCell": {"/cell", "", global},

	"listQueueCopies": {"/cell/settings", "", global},
	"putQueueCopies":  {"/cell/settings", `{"queues":[{"queue":"copied","policy":{"max_attempts":5}}]}`, global},
	"leaveKeys":       {"/cell/queues/SIDE.q/keys", `{"keys":["k"]}`, refused},
	"listCells":       {"/cells", "", global},
	"putCell":         {"/cells/2", `{"takes_new":false}`, global},
	"deleteCell":      {"/cells/LISTED", "", global},
	"listCellQueues":  {"/cell/queues", "", global},
	"insertForwarded": {"/cell/events", `{"events":[{"id":1,"event":{},"publication":{"forward":{"queue":"SIDE.q"}}}]}`, global},

	"listKeyCopies": {"/cell/keys", "", global},
	"putKeyCopies":  {"/cell/keys", `{"keys":[` + keyCopy + `]}`, global},

	"putPlacement":    {"/queues/SIDE.q/placement", `{"cells":[0]}`, refused},
	"placeNewQueue":   {"/queues/SIDE.q/placement", `{"cell":0}`, refused},
	"getPlacement":    {"/queues/PLACED/placement", "", refused},
	"drainPlacement":  {"/queues/PLACED/placement/drained", `{"cells":[0]}`, refused},
	"deletePlacement": {"/queues/PLACED/placement", "", refused},
	"listPlacements":  {"/placements", "", filtered},

	"livez":       {"/livez", "", unlimited},
	"readyz":      {"/readyz", "", unlimited},
	"showVersion": {"/version", "", unlimited},
	"metrics":     {"/metrics", "", global},
	"openapi":     {"/openapi.yaml", "", unlimited},
	"docs":        {"/docs", "", unlimited},
	"docsAsset":   {"/docs/init.js", "", unlimited},
	"index":       {"/", "", unlimited},
}

// A side makes what the words in capitals of a request stand for, in queues and topics that begin alike.
type side struct {
	name  string
	admin *client
	n     int
}

// fill replaces the words in a text; known are those that were replaced before.
func (d *side) fill(text string, known map[string]string) string {
	text = strings.ReplaceAll(text, "SIDE", d.name)
	event := func(query string) seenEvent {
		return decode[seenEvent](d.admin.try("POST", "/events?queue="+d.name+".q"+query, `{"secret":"`+d.name+`"}`).want(http.StatusCreated))
	}
	d.n++
	name := fmt.Sprintf("%s.sub%d", d.name, d.n)
	makers := map[string]func(){
		"EVENT": func() { known["EVENT"] = strconv.FormatInt(event("&priority=1").ID, 10) },
		"LATER": func() { known["LATER"] = strconv.FormatInt(event("&priority=1&delay=1h").ID, 10) },
		"RAW":   func() { known["RAW"] = strconv.FormatInt(event("&priority=1&keep_raw=1h").ID, 10) },
		"LEASED": func() {
			event("&priority=-1")
			e := decode[seenPage](d.admin.try("POST", "/claim", `{"queue":"`+d.name+`.q"}`).want(http.StatusOK)).Events[0]
			known["LEASED"], known["RECEIPT"] = strconv.FormatInt(e.ID, 10), e.Receipt
		},
		"DONE": func() {
			id := event("").ID
			d.admin.try("DELETE", fmt.Sprintf("/events/%d", id), "").want(http.StatusNoContent)
			known["DONE"] = strconv.FormatInt(id, 10)
		},
		"REDRIVE": func() {
			d.admin.try("POST", "/events?queue="+d.name+".redriven", "{}").want(http.StatusCreated)
			d.admin.try("POST", "/queues/"+d.name+".redriven/purge", "").want(http.StatusOK)
			made := d.admin.try("POST", "/redrives", `{"filter":{"queue":"`+d.name+`.redriven"},"rate":0.01}`).want(http.StatusAccepted)
			known["REDRIVE"] = strconv.FormatInt(decode[redrive](made).ID, 10)
		},
		"SCHEDULE": func() {
			target := []string{`"queue":"` + d.name + `.q"`, `"topic":"` + d.name + `.t"`}[d.n%2]
			made := d.admin.try("POST", "/schedules", `{"event":{},`+target+`,"cron":"@yearly","timezone":"UTC"}`).want(http.StatusCreated)
			known["SCHEDULE"] = strconv.FormatInt(decode[seenEvent](made).ID, 10)
		},
		"PUSHED": func() {
			d.admin.try("PUT", "/queues/"+name+"/push", `{"url":"http://127.0.0.1:1"}`).want(http.StatusCreated)
			known["PUSHED"] = name
		},
		"PLACED": func() {
			d.admin.try("PUT", "/queues/"+name+"/placement", `{"cells":[0]}`).want(http.StatusOK)
			d.admin.try("PUT", "/queues/"+name+"/placement", `{"cells":[1]}`).want(http.StatusOK)
			known["PLACED"] = name
		},
		"LISTED": func() {
			home := *d.admin
			home.url = home.own[0] // a gateway of several cells lists none that it cannot reach
			home.try("PUT", "/cells/9", `{}`).want(http.StatusOK)
			known["LISTED"] = "9"
		},
		"UNUSED": func() {
			d.admin.try("PUT", "/queues/"+name+"u", "{}").want(http.StatusOK)
			known["UNUSED"] = name + "u"
		},
		"POSITION": func() {
			known["POSITION"] = strconv.FormatInt(decode[publishResponse](d.admin.try("POST", "/topics/"+d.name+".t", `{}`).want(http.StatusCreated)).Position, 10)
		},
		"SOURCE": func() {
			target := []string{`"queue":"` + d.name + `.q"`, `"topic":"` + d.name + `.t"`}[d.n%2]
			d.admin.try("PUT", "/sources/"+name, `{"kind":"token","secrets":["a secret"],`+target+`}`).want(http.StatusCreated)
			known["SOURCE"] = name
		},
		"READER": func() {
			d.admin.try("PUT", "/subscriptions/"+name, `{"filters":[{"name":"f","topics":["`+d.name+`.t"]},{"name":"g","topics":["`+d.name+`.u"]}]}`).want(http.StatusCreated)
			known["READER"] = name
		},
		"DELIVERED": func() {
			d.admin.try("PUT", "/subscriptions/"+name+"d", `{"filters":[{"topics":["in.t"]}],"deliver":{"queue":"`+d.name+`.q"}}`).want(http.StatusCreated)
			known["DELIVERED"] = name + "d"
		},
	}
	for _, word := range []string{"EVENT", "LATER", "RAW", "LEASED", "DONE", "REDRIVE", "SCHEDULE", "POSITION", "SOURCE", "READER", "DELIVERED", "PUSHED", "PLACED", "LISTED", "UNUSED"} {
		if strings.Contains(text, word) && known[word] == "" {
			makers[word]()
		}
	}
	for word, value := range known {
		text = strings.ReplaceAll(text, word, value)
	}
	return text
}

// TestRestrictedKeyUsesWhatItMayAndNothingElse calls every route with a key for the queues and topics that begin with in, about those and about others.
func TestRestrictedKeyUsesWhatItMayAndNothingElse(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.placeOn(0, "in.q", "out.q")
	admin := h.key(h.createKey(access.CreateParams{Scopes: []access.Scope{access.Admin}}))
	in, out := &side{name: "in", admin: admin}, &side{name: "out", admin: admin}
	for _, d := range []*side{in, out} {
		d.fill("EVENT DONE REDRIVE SCHEDULE POSITION SOURCE READER DELIVERED PLACED", make(map[string]string))
	}
	for _, d := range []*side{in, out} { // a lease that holds others back
		d.admin.try("POST", "/events?queue="+d.name+".stuck", "{}").want(http.StatusCreated)
		d.admin.try("POST", "/claim", `{"queue":"`+d.name+`.stuck"}`).want(http.StatusOK)
	}
	h.sql(`update agent.event set claimed = array[now() - interval '1 day'] where queue like '%.stuck'`)
	h.topics.Drain() // so that streams end
	all := slices.DeleteFunc(slices.Clone(access.Scopes), func(s access.Scope) bool { return s == access.Admin })
	key := h.key(h.createKey(access.CreateParams{Scopes: all, Queues: []string{"in.*"}, Topics: []string{"in.**"}}))
	needed := scopesOfContract(t)
	for _, r := range everyRoute(t) {
		if r.isWebhook() { // which does not look at keys
			continue
		}
		call, ok := restrictedCalls[r.id]
		if !ok {
			t.Errorf("%s is not in the table: what may a restricted key do with it?", r.id)
			continue
		}
		known := make(map[string]string)
		path := in.fill(call.path, known)
		ours := key.try(r.method, path, in.fill(call.body, known))
		switch {
		case call.out == global:
			p := ours.wantProblem(problem.Forbidden)
			if required := (problem.Required{Queue: "*", Topic: "**"}); needed[r.method+" "+r.pattern] != access.Admin && (p.Required == nil || p.Required.Topic != required.Topic) {
				t.Errorf("%s requires %+v", r.id, p.Required)
			}
			continue
		case ours.status == http.StatusUnauthorized || ours.status == http.StatusForbidden || ours.status == http.StatusNotFound:
			t.Errorf("%s of what the key may use returned %d: %s", r.id, ours.status, ours.body)
		case call.out == filtered && (strings.Contains(ours.body, "out.") || strings.Contains(ours.body, `"out"`)):
			t.Errorf("%s shows what the key may not use: %s", r.id, ours.body)
		case call.out == filtered && !r.isBatchOfLeases() && !strings.Contains(ours.body, "in."):
			t.Errorf("%s does not show what the key may use: %s", r.id, ours.body)
		}
		if call.out == unlimited || call.out == filtered && !r.isBatchOfLeases() {
			continue
		}
		known = make(map[string]string)
		path = out.fill(call.path, known)
		body := out.fill(call.body, known)
		foreign := key.try(r.method, path, body)
		if call.out == refused {
			if p := foreign.wantProblem(problem.Forbidden); p.Required == nil || !strings.HasPrefix(p.Required.Queue+p.Required.Topic, "out.") {
				t.Errorf("%s requires %+v", r.id, p.Required)
			}
			continue
		}
		// The same request about what there is not gets the same answer.
		for word, value := range known {
			nothing := "1152921504606846976"
			switch word {
			case "READER", "DELIVERED", "SOURCE":
				nothing = "in.nothing"
			case "POSITION":
				nothing = "4294967999"
			case "RECEIPT":
				continue
			}
			path, body = strings.ReplaceAll(path, value, nothing), strings.ReplaceAll(body, value, nothing)
		}
		nothing := key.try(r.method, path, body)
		clean := func(a answer) string {
			text := regexp.MustCompile(`"request_id":"[A-Z2-7]{26}"`).ReplaceAllString(a.body, "")
			for word, value := range known {
				if word != "RECEIPT" {
					text = regexp.MustCompile(`\b`+regexp.QuoteMeta(value)+`\b`).ReplaceAllString(text, "1152921504606846976")
				}
			}
			return fmt.Sprint(a.status, text)
		}
		if foreign.status != call.out || clean(foreign) != clean(nothing) {
			t.Errorf("%s: got %s for what the key may not use, and %s for what there is not", r.id, clean(foreign), clean(nothing))
		}
	}
}

func TestRestrictedKeyFindsNoWayAround(t *testing.T) {
	t.Parallel()
	h := setup(t)
	admin := h.key(h.createKey(access.CreateParams{Scopes: []access.Scope{access.Admin}}))
	scopes := slices.DeleteFunc(slices.Clone(access.Scopes), func(s access.Scope) bool { return s == access.Admin })
	key := h.key(h.createKey(access.CreateParams{Scopes: scopes, Queues: []string{"in.*", "exact"}, Topics: []string{"in.*", "shared.**"}}))
	queuesOnly := h.key(h.createKey(access.CreateParams{Scopes: scopes, Queues: []string{"*"}}))
	in, out := &side{name: "in", admin: admin}, &side{name: "out", admin: admin}
	ours, theirs := make(map[string]string), make(map[string]string)
	in.fill("SCHEDULE READER DELIVERED", ours)
	out.fill("SCHEDULE READER DELIVERED", theirs)
	out.fill("EVENT", theirs)

	refusedCalls := []struct{ method, path, body string }{
		{"POST", "/events", `{}`}, // the queue default
		{"POST", "/claim", ``},
		{"POST", "/events?queue=exactly", `{}`},
		{"POST", "/sweep", ``},
		{"GET", "/events?queue=out.q", ""},
		{"GET", "/history?queue=out.q", ""},
		{"GET", "/history/stats?queue=out.q", ""},
		{"POST", "/queues/out.q/move", `{"to":"in.q"}`},
		{"POST", "/schedules", `{"event":{},"cron":"@yearly","timezone":"UTC"}`},
		{"POST", "/schedules", `{"event":{},"topic":"out.t","cron":"@yearly","timezone":"UTC"}`},
		{"PATCH", "/schedules/" + ours["SCHEDULE"], `{"queue":"out.q"}`},
		{"PATCH", "/schedules/" + ours["SCHEDULE"], `{"topic":"out.t"}`},
		{"POST", "/topics/in.t?subscription=" + theirs["READER"], `{}`},
		{"POST", "/topics/in.t?subscription=nothing", `{}`},
		{"POST", "/publish", `{"events":[{"topic":"in.t","event":{},"subscription":"` + theirs["DELIVERED"] + `"}]}`},
		{"POST", "/topics/in.t.u", `{}`},
		{"PUT", "/subscriptions/mine", `{"filters":[{"topics":["in.t"]}],"deliver":{"queue":"out.q"}}`},
		{"PUT", "/subscriptions/mine", `{"filters":[{"topics":["in.t"]},{}]}`},
		{"PUT", "/subscriptions/mine", `{"filters":[]}`},
		{"PUT", "/subscriptions/mine", `{"filters":[{"topics":["in.**"]}]}`},
		{"PUT", "/subscriptions/mine", `{"filters":[{"topics":["*.t"]}]}`},
		{"PUT", "/subscriptions/" + theirs["READER"], `{"filters":[{"topics":["in.t"]}]}`},
		{"PUT", "/subscriptions/" + ours["READER"] + "/filters/more", `{"topics":["out.t"]}`},
		{"PUT", "/subscriptions/" + ours["READER"] + "/filters/more", `{"match":{"a":[1]}}`},
		{"GET", "/log?topic=out.t", ""},
		{"GET", "/log?topic=**", ""},
		{"GET", "/log?topic=in.t&topic=*.t", ""},
		{"GET", "/stream?topic=**", ""},
		{"POST", "/match", `{"filter":{"topics":["in.t"]},"last":10}`},
	}
	for _, call := range refusedCalls {
		if got := key.try(call.method, call.path, call.body); got.status != http.StatusForbidden {
			t.Errorf("%s %s %s: got %d %s", call.method, call.path, call.body, got.status, got.body)
		}
	}
	key.try("POST", "/match", `{"filter":{"topics":["out.t"]},"events":[{"topic":"out.t","event":{}}]}`).want(http.StatusOK)
	key.try("GET", "/log?topic=shared.a.b&topic=in.*", "").want(http.StatusOK)
	key.try("POST", "/events?queue=exact", "{}").want(http.StatusCreated)

	// Lists of events of both sides: each by itself.
	batch := key.try("POST", "/ack", fmt.Sprintf(`{"events":[{"id":%s},{"id":1152921504606846976}]}`, theirs["EVENT"])).want(http.StatusOK)
	if got := strings.Count(batch.body, `"status":404,"code":"event_not_found"`); got != 2 {
		t.Errorf("acks of others' events returned %s", batch.body)
	}
	claimed := key.try("POST", "/claim", fmt.Sprintf(`{"queue":"exact","acks":[{"id":%s},{"id":1152921504606846976}]}`, theirs["EVENT"])).want(http.StatusOK)
	if got := strings.Count(claimed.body, `"status":404,"code":"event_not_found"`); got != 2 || !strings.Contains(claimed.body, `"receipt":`) {
		t.Errorf("a claim with acks of others' events returned %s", claimed.body)
	}
	admin.try("GET", "/events/"+theirs["EVENT"], "").want(http.StatusOK)
	if n := decode[requeueMatchingResponse](key.try("POST", "/history/requeue", `{"from":"2000-01-01T00:00:00Z"}`).want(http.StatusOK)); n.Matched != 0 {
		t.Errorf("requeueing all of history matched %d events of others", n.Matched)
	}
	if n := decode[requeueMatchingResponse](key.try("POST", "/history/requeue", `{"finished_from":"2000-01-01T00:00:00Z"}`).want(http.StatusOK)); n.Matched != 0 {
		t.Errorf("requeueing all of history matched %d events of others", n.Matched)
	}

	// A publication for later waits in a queue of the service's own, which is for nobody who may not use all.
	waits := decode[seenEvent](admin.try("POST", "/topics/out.t?delay=1h", `{"secret":"out"}`).want(http.StatusAccepted))
	for _, k := range []*client{key, queuesOnly} {
		k.try("GET", fmt.Sprintf("/events/%d", waits.ID), "").wantProblem(problem.EventNotFound)
		k.try("DELETE", fmt.Sprintf("/events/%d", waits.ID), "").wantProblem(problem.EventNotFound)
		if got := k.try("GET", "/events", "").want(http.StatusOK); strings.Contains(got.body, "queued.publish") {
			t.Errorf("the listing has a publication: %s", got.body)
		}
	}
	queuesOnly.try("POST", "/topics/a", "{}").wantProblem(problem.Forbidden)
	queuesOnly.try("GET", "/log", "").wantProblem(problem.Forbidden)
	queuesOnly.try("GET", "/metrics", "").wantProblem(problem.Forbidden)
	queuesOnly.try("POST", "/events", "{}").want(http.StatusCreated)

	// Who holds the log is not for everybody.
	tx, err := h.connect().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select agent_private.hold_head(), pg_sleep(1.2)`); err != nil {
		t.Fatal(err)
	}
	if got := admin.try("GET", "/log?topic=shared.none", "").want(http.StatusOK); !strings.Contains(got.body, "held_by") {
		t.Errorf("an admin is not told who holds the log: %s", got.body)
	}
	if got := key.try("GET", "/log?topic=shared.none", "").want(http.StatusOK); strings.Contains(got.body, "held_by") {
		t.Errorf("a restricted key is told: %s", got.body)
	}
	_ = tx.Rollback(t.Context())
}

func TestFirstKeyOfAnOpenServerHasToBeAdmin(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.call("GET", "/keys/self", "").want(http.StatusOK)
	h.call("POST", "/keys", `{"name":"n","scopes":["read","manage"]}`).wantProblem(problem.ValidationFailed)
	made := decode[seenKey](h.call("POST", "/keys", `{"name":"n","scopes":["admin"]}`).want(http.StatusCreated))
	h.call("GET", "/keys", "").wantProblem(problem.Unauthorized)
	h.call("POST", "/keys", `{"name":"n","scopes":["admin"]}`).wantProblem(problem.Unauthorized)
	self := h.key(made.Key).call("GET", "/keys/self", "").want(http.StatusOK)
	if !strings.Contains(self.body, made.ID) || strings.Contains(self.body, made.Key) {
		t.Errorf("the key knows of itself %s", self.body)
	}
	if strings.Contains(h.log.String(), made.Key) {
		t.Error("the log has the key")
	}
}

func TestNobodyTakesTheFirstKeyAwayWhereItIsNotKnownYet(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.sql(`alter table agent.api_key disable trigger user`) // which has processes read the keys
	for i, scope := range []string{"admin", "read"} {
		h.atHome().sql(`insert into agent.api_key (id, name, scopes, hash, verifier) values ($1, 'n', array[$2], sha256('a'), sha256('b'))`, strings.Repeat(string(rune('a'+i)), 8), scope)
	}
	h.try("POST", "/keys/aaaaaaaa/rotate", "").wantProblem(problem.Unauthorized)
	h.try("PATCH", "/keys/bbbbbbbb", `{"scopes":["admin"]}`).wantProblem(problem.Unauthorized)
	h.try("DELETE", "/keys/bbbbbbbb", "").wantProblem(problem.Unauthorized)
	h.try("DELETE", "/keys/cccccccc", "").wantProblem(problem.KeyNotFound)
	if n := h.atHome().count(`select count(*) from agent.api_key where version > 1 or revoked_at is not null`); n != 0 {
		t.Errorf("%d keys were changed", n)
	}
}

func TestWaitingCallsEndWithTheirKey(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.createKey(access.CreateParams{Scopes: []access.Scope{access.Admin}})
	key := h.createKey(access.CreateParams{Scopes: []access.Scope{access.Claim}})
	answered := make(chan answer, 1)
	go func() { answered <- h.key(key).try("POST", "/claim", `{"wait":"60s"}`) }()
	began := time.Now()
	h.revokeKey(key[3:11])
	(<-answered).wantProblem(problem.KeyRevoked)
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("the call went on for %s", took)
	}
}

func TestRestrictedKeyMovesEventsToNoQueueOfOthers(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.createKey(access.CreateParams{Scopes: []access.Scope{access.Admin}})
	key := h.key(h.createKey(access.CreateParams{Scopes: []access.Scope{access.Manage}, Queues: []string{"in.*"}}))
	p := key.call("POST", "/queues/in.q/move", `{"to":"out.q"}`).wantProblem(problem.Forbidden)
	if p.Required == nil || p.Required.Queue != "out.q" || p.Errors[0].Pointer != "#/to" {
		t.Errorf("got %+v", p)
	}
}

func TestKeyForAllQueuesSaysSo(t *testing.T) {
	t.Parallel()
	h := setup(t)
	admin := h.key(h.createKey(access.CreateParams{Scopes: []access.Scope{access.Admin}}))
	for body, want := range map[string]string{
		`{"name":"n","scopes":["read"]}`:                   `"queues":null,"topics":null`,
		`{"name":"n","scopes":["read"],"queues":["in.*"]}`: `"queues":["in.*"],"topics":[]`,
	} {
		if got := admin.call("POST", "/keys", body).want(201).body; !strings.Contains(got, want) {
			t.Errorf("%s: got %s, want %s", body, got, want)
		}
	}
}

func TestOnlyNullForBothLiftsTheRestrictionOfAKey(t *testing.T) {
	t.Parallel()
	h := setup(t)
	admin := h.key(h.createKey(access.CreateParams{Scopes: []access.Scope{access.Admin}}))
	made := decode[seenKey](admin.call("POST", "/keys", `{"name":"n","scopes":["read"],"queues":["in.*"]}`).want(201))
	for _, c := range [][2]string{
		{`{"queues":null}`, `"queues":[],"topics":[]`}, {`{"topics":null}`, `"queues":[],"topics":[]`}, {`{"queues":null,"topics":null}`, `"queues":null,"topics":null`},
	} {
		if got := admin.call("PATCH", "/keys/"+made.ID, c[0]).want(200).body; !strings.Contains(got, c[1]) {
			t.Errorf("%s: got %s, want %s", c[0], got, c[1])
		}
	}
}

func TestRestrictedKeyReadsOfASubscriptionOnlyItsTopics(t *testing.T) {
	t.Parallel()
	h := setup(t)
	admin := h.key(h.createKey(access.CreateParams{Scopes: []access.Scope{access.Admin}}))
	text := h.createKey(access.CreateParams{Scopes: []access.Scope{access.Manage, access.Claim}, Queues: []string{"in.*"}, Topics: []string{"in.**"}})
	key := h.key(text)

	// Events published for a name, before anybody had a subscription of that name, and since.
	admin.call("POST", "/topics/out.t?subscription=feed", `{"secret":1}`).want(http.StatusCreated)
	key.call("PUT", "/subscriptions/feed", `{"filters":[{"topics":["in.**"]}],"start":"earliest"}`).want(http.StatusCreated)
	s := h.environmentWith("Authorization", "Bearer "+text).open("/subscriptions/feed/stream")
	s.frame(1)
	admin.call("POST", "/publish", `{"events":[{"topic":"out.t","event":{"secret":2},"subscription":"feed"},{"topic":"in.t","event":{}}]}`).want(http.StatusCreated)
	// The service publishes, too: while it does, a read may end before the events.
	read := func(reader *client, want ...string) {
		t.Helper()
		for late := time.Now().Add(busyTimeout); ; {
			var topics []string
			for _, e := range decode[struct{ Events []struct{ Topic string } }](reader.call("POST", "/subscriptions/feed/read", `{"wait":"1s"}`).want(http.StatusOK)).Events {
				topics = append(topics, e.Topic)
			}
			if slices.Equal(topics, want) {
				return
			}
			if len(topics) >= len(want) || !slices.Equal(topics, want[:len(topics)]) || time.Now().After(late) {
				t.Errorf("read %v, want %v", topics, want)
				return
			}
		}
	}
	read(key, "in.t")
	read(admin, "out.t", "out.t", "in.t")
	if e := s.next(1)[0]; e.name != "in.t" {
		t.Errorf("the stream has %+v", e)
	}

	// Whose stream is open stays restricted, whatever the subscription becomes.
	admin.call("PUT", "/subscriptions/feed", `{"filters":[{"topics":["out.**"]},{"topics":["in.**"]}]}`).want(http.StatusOK)
	key.call("POST", "/subscriptions/feed/read", "").wantProblem(problem.SubscriptionNotFound)
	admin.call("POST", "/publish", `{"events":[{"topic":"out.t","event":{"secret":3}},{"topic":"in.u","event":{}}]}`).want(http.StatusCreated)
	if e := s.next(1)[0]; e.name != "in.u" {
		t.Errorf("the stream has %+v", e)
	}
}

func TestRestrictedKeyGetsNoScheduleOfOthersByItsIdempotencyKey(t *testing.T) {
	t.Parallel()
	h := setup(t)
	admin := h.key(h.createKey(access.CreateParams{Scopes: []access.Scope{access.Admin}}))
	key := h.key(h.createKey(access.CreateParams{Scopes: []access.Scope{access.Manage}, Queues: []string{"in.*"}}))
	const body = `{"event":{},"queue":"in.q","cron":"@yearly","timezone":"UTC","idempotency_key":"k"}`
	made := decode[seenEvent](key.call("POST", "/schedules", body).want(http.StatusCreated))
	key.call("POST", "/schedules", body).want(http.StatusOK)
	admin.call("PATCH", fmt.Sprintf("/schedules/%d", made.ID), `{"queue":"out.q","event":{"secret":1}}`).want(http.StatusOK)
	key.call("POST", "/schedules", body).wantProblem(problem.KeyReused)
	if other := decode[seenEvent](admin.call("POST", "/schedules", body).want(http.StatusCreated)); other.ID == made.ID { // keys are those of their caller
		t.Errorf("another caller got the schedule %d", made.ID)
	}
}

// TestRestrictedKeyReadsOwnTopicsOnlyByTheirNames publishes what the service says of a push of others, and looks for it with a key for all topics.
func TestRestrictedKeyReadsOwnTopicsOnlyByTheirNames(t *testing.T) {
	t.Parallel()
	h := setup(t)
	admin := h.key(h.createKey(access.CreateParams{Scopes: []access.Scope{access.Admin}}))
	scopes := []access.Scope{access.Read, access.Claim, access.Manage}
	text := h.createKey(access.CreateParams{Scopes: scopes, Queues: []string{"in.*"}, Topics: []string{"**"}})
	key := h.key(text)
	named := h.key(h.createKey(access.CreateParams{Scopes: scopes, Queues: []string{"in.*"}, Topics: []string{"**", "queued.push.*"}}))

	for i, body := range []string{`{"filters":[{}]}`, `{"filters":[{"topics":["**"]}]}`, `{"filters":[{"topics":["*.*.*","in.t"]}]}`, `{"filters":[]}`} {
		key.call("PUT", fmt.Sprintf("/subscriptions/s%d", i), body).want(http.StatusCreated)
	}
	key.call("PUT", "/subscriptions/s0/filters/more", `{"match":{"queue":[{"exists":true}]}}`).want(http.StatusOK)
	key.call("PUT", "/subscriptions/delivered", `{"filters":[{}],"deliver":{"queue":"in.q"}}`).want(http.StatusCreated)
	admin.call("PUT", "/subscriptions/all", `{"filters":[{}]}`).want(http.StatusCreated)
	token := decode[createStreamTokenResponse](key.call("POST", "/stream/tokens", `{"topics":["**"]}`).want(http.StatusCreated)).Token
	with := h.environmentWith("Authorization", "Bearer "+text)
	var streams []*openStream
	for _, path := range []string{"/stream", "/stream?topic=**", "/stream?topic=*.*.*&topic=in.t", "/subscriptions/s0/stream"} {
		streams = append(streams, with.open(path).frame(1))
	}
	streams = append(streams, h.open("/stream?token="+token).frame(1))

	h.atHome().sql(`select agent_private.publish_own('queued.push.opened', '{"queue": "out.q", "secret": 1}')`)
	position := decode[publishResponse](admin.call("POST", "/topics/in.t", `{}`).want(http.StatusCreated)).Position

	for i, s := range streams {
		if e := s.next(1)[0]; e.name != "in.t" {
			t.Errorf("the stream %d has %+v", i, e)
		}
	}
	for _, path := range []string{"/log", "/log?topic=**", "/log?topic=*.**", "/topics", "/topics?limit=1"} {
		if got := key.call("GET", path, "").want(http.StatusOK); strings.Contains(got.body, "queued.") || !strings.Contains(got.body, "in.t") {
			t.Errorf("%s: got %s", path, got.body)
		}
	}
	for i := range 3 {
		if got := key.call("POST", fmt.Sprintf("/subscriptions/s%d/read", i), `{"wait":"5s"}`).want(http.StatusOK); strings.Contains(got.body, "queued.") || !strings.Contains(got.body, "in.t") {
			t.Errorf("subscription %d: got %s", i, got.body)
		}
	}
	if e := decode[seenPage](key.call("POST", "/claim", `{"queue":"in.q","wait":"20s"}`).want(http.StatusOK)).Events; len(e) != 1 || e[0].Publication["topic"] != "in.t" {
		t.Errorf("delivered were %+v", e)
	}
	for _, path := range []string{"/log?topic=queued.push.*", "/log?topic=queued.**", "/log?topic=queued.push.opened", "/stream?topic=queued.push.opened"} {
		key.call("GET", path, "").wantProblem(problem.Forbidden)
	}
	key.call("POST", "/match", `{"filter":{"topics":["**"]},"last":10}`).wantProblem(problem.Forbidden)
	key.call("POST", "/stream/tokens", `{"topics":["queued.push.*"]}`).wantProblem(problem.Forbidden)
	key.call("PUT", "/subscriptions/mine", `{"filters":[{"topics":["queued.push.*"]}]}`).wantProblem(problem.Forbidden)
	key.call("GET", "/subscriptions/all", "").wantProblem(problem.SubscriptionNotFound)
	key.call("GET", fmt.Sprintf("/log/%d", position-1), "").wantProblem(problem.PositionNotFound)

	if got := named.call("GET", "/log?topic=queued.push.opened", "").want(http.StatusOK); !strings.Contains(got.body, "secret") {
		t.Errorf("a key that names it got %s", got.body)
	}
	if got := admin.call("GET", "/log", "").want(http.StatusOK); !strings.Contains(got.body, "secret") {
		t.Errorf("an admin got %s", got.body)
	}
}
