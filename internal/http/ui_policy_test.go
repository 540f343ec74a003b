package http

import (
	"net/url"
	"reflect"
	"strings"
	"testing"
)

// policyVersion returns the version that the form of the policy of mail is about.
func (b *browser) policyVersion() string {
	b.t.Helper()
	page := b.get("queues/mail/policy").want(200).says("Policy of mail", `name="version" value="`)
	return strings.SplitN(strings.SplitN(page.body, `name="version" value="`, 2)[1], `"`, 2)[0]
}

func TestPolicyIsChangedOnItsPage(t *testing.T) {
	t.Parallel()
	h := setup(t)
	b := h.browse(t)
	h.call("POST", "/events?queue=mail", `{}`).want(201)
	h.call("POST", "/queues/mail/pause", "").want(200)
	form := url.Values{
		"version": {b.policyVersion()}, "max_attempts": {"5"}, "invisible_for": {"2m"}, "backoff/kind": {"exponential"}, "backoff/base": {"5s"}, "backoff/factor": {"2"},
		"backoff/max": {"1h"}, "backoff/jitter": {"0.1"}, "dead_letter/queue": {"mail.dead"}, "history_retention": {"30d"}, "delay": {"10s"}, "wait": {"20s"},
	}
	b.follow("queues/mail/policy", form).want(200).says("The policy is stored", "exponential, 5 s × 2, at most 1 h, jitter 0.1", "mail.dead", "30 d", `<span class="tag paused">`)
	h.call("GET", "/queues/mail", "").want(200)
	b.get("queues/mail/policy").want(200).says(`value="5s"`, `value="mail.dead"`, `value="720h"`)

	b.post("queues/mail/policy", form).want(412).says(`value="mail.dead"`) // somebody has changed it meanwhile
	form.Set("version", b.policyVersion())
	form.Set("max_attempts", "many")
	form.Set("backoff/base", "soon")
	b.post("queues/mail/policy", form).want(422).says(`id="max_attempts-wrong"`, `id="backoff/base-wrong"`, `value="soon"`)

	b.follow("queues/mail/policy", url.Values{"version": {b.policyVersion()}}).want(200).says("The policy is stored", "as each event says").saysNot("mail.dead")
	b.follow("queues/fresh/policy", url.Values{"version": {"0"}, "max_attempts": {"1"}}).want(200).says("The policy is stored")
}

func TestLimitsOfGroupsAreChangedOnThePageOfThePolicy(t *testing.T) {
	t.Parallel()
	h := setup(t)
	b := h.browse(t)
	stored := func(form url.Values, want string) {
		t.Helper()
		form.Set("version", b.policyVersion())
		b.follow("queues/mail/policy", form).want(200).says("The policy is stored")
		if got := h.call("GET", "/queues/mail", "").want(200).body; !strings.Contains(got, want) {
			t.Errorf("the policy is %s, without %s", got, want)
		}
	}
	form := url.Values{
		"group_from": {"/tenant"}, "flow/concurrency": {"2"}, "flow/total": {"50"}, "flow/on_failed": {"block"}, "flow/rate/limit": {"10"}, "flow/rate/period": {"1m"}, "flow/rate/burst": {"3"}, "flow/fair": {"true"},
	}
	stored(form, `"group_from":"/tenant","flow":{"concurrency":2,"total":50,"order":true,"on_failed":"block","rate":{"limit":10,"period":"1m0s","burst":3},"fair":true}`)
	b.get("queues/mail/policy").want(200).says(`name="group_from" value="/tenant"`, `name="flow/concurrency" value="2"`, `name="flow/total" value="50"`, `value="block" selected`,
		`name="flow/rate/limit" value="10"`, `name="flow/rate/period" value="1m"`, `name="flow/rate/burst" value="3"`, `value="true" selected`)
	b.get("queues/mail").want(200).says("groups take turns")

	form.Set("version", b.policyVersion())
	for field, value := range map[string]string{"flow/concurrency": "many", "flow/total": "10001", "flow/rate/limit": "0", "flow/rate/period": "soon", "flow/rate/burst": "-1", "group_from": "tenant"} {
		was := form.Get(field)
		form.Set(field, value)
		b.post("queues/mail/policy", form).want(422).says(`id="`+field+`-wrong"`, `name="`+field+`" value="`+value+`"`)
		form.Set(field, was)
	}
	form.Set("delay", "5s")
	b.post("queues/mail/policy", form).want(422).says(`id="flow/order-wrong"`)
	form.Del("delay")

	form.Del("flow/rate/limit")
	b.post("queues/mail/policy", form).want(422).says(`id="flow/rate/limit-wrong"`)
	stored(url.Values{"flow/on_failed": {"continue"}}, `"flow":{"concurrency":null,"total":null,"order":true,"on_failed":"continue","rate":null`)
	stored(url.Values{"max_attempts": {"5"}}, `"flow":null`)
}

// TestFormOfPolicyHasEachSetting: one that it does not have is lost by whoever sends it.
func TestFormOfPolicyHasEachSetting(t *testing.T) {
	t.Parallel()
	page := setup(t).browse(t).get("queues/mail/policy").want(200)
	var look func(of reflect.Type, above string)
	look = func(of reflect.Type, above string) {
		for i := range of.NumField() {
			field := of.Field(i)
			name := above + field.Tag.Get("json")
			kind := field.Type
			if kind.Kind() == reflect.Pointer {
				kind = kind.Elem()
			}
			switch {
			case name == "paused": // the page of the queue has a button for it
			case name == "flow/order": // which flow/on_failed says, too
			case kind.Kind() == reflect.Struct:
				look(kind, name+"/")
			default:
				page.says(`name="` + name + `"`)
			}
		}
	}
	look(reflect.TypeFor[policy](), "")
}

func TestEventsAreMovedAndQueuesDeletedOnTheirPages(t *testing.T) {
	t.Parallel()
	h := setup(t)
	b := h.browse(t)
	for range 3 {
		h.call("POST", "/events?queue=mail&type=letter", `{}`).want(201)
	}
	h.call("PUT", "/queues/mail", `{"flow":{"concurrency":1}}`).want(200)
	for range 2 { // of which one waits for its turn
		h.call("POST", "/events?queue=mail&type=card&group=a", `{}`).want(201)
	}
	b.get("queues/mail/move").want(200).says("5 events wait in mail")
	b.post("queues/mail/move", url.Values{"types": {"letter"}}).want(422).says(`id="to-wrong"`, ">letter</textarea>")
	b.follow("queues/mail/move", url.Values{"to": {"post"}, "types": {"letter\r\n"}, "limit": {"2"}}).want(200).says("Events moved: 2")
	if got := h.call("GET", "/queues/post", "").want(200).body; !strings.Contains(got, `"ready":2`) {
		t.Errorf("the events are not there: %s", got)
	}
	b.get("queues/mail/delete").want(200).says("Delete the queue mail?", "The 3 events that wait in it move into history as cancelled")
	b.follow("queues/mail/delete", nil).want(200).says("The queue is deleted. Events that went into history as cancelled: 3.")
	b.post("queues/nothing/delete", nil).want(404)
}
