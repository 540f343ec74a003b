package pages

import (
	"cmp"
	"net/http"
	"strings"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/queued/queued/internal/ui"
)

// routes is every page and every form there is.
func (h *Handler) routes() {
	r := h.mux
	r.Use(middleware.GetHead)
	r.NotFound(h.page(notFound))
	r.MethodNotAllowed(exceptLive(h.refuseMethod))
	r.Get(Prefix+"static/{file}", exceptLive(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Del("Cache-Control")
		if !ui.ServeAsset(w, r, r.PathValue("file")) {
			http.NotFound(w, r)
		}
	}))
	r.Get(Prefix+"live", exceptLive(h.serveLive))
	r.Get(Prefix+"login", exceptLive(h.showLogIn))
	r.Post(Prefix+"login", h.logIn)
	r.Post(Prefix+"logout", h.logOut)

	r.Get(Prefix, h.page(showOverview, "range"))
	r.Get(Prefix+"queues", h.page(listQueues, "range", "order", "offset", "name_contains"))
	r.Get(Prefix+"queues/{name}", h.page(showQueue, "range"))
	r.Post(Prefix+"queues/{name}/pause", h.action(pauseQueue, showQueue))
	r.Post(Prefix+"queues/{name}/resume", h.action(resumeQueue, showQueue))
	r.Get(Prefix+"queues/{name}/purge", h.page(needs(scopeManage, confirmPurge)))
	r.Post(Prefix+"queues/{name}/purge", h.action(purgeQueue, confirmPurge))
	r.Get(Prefix+"queues/{name}/policy", h.page(needs(scopeManage, changePolicy)))
	r.Post(Prefix+"queues/{name}/policy", h.action(storePolicy, changePolicy))
	r.Get(Prefix+"queues/{name}/move", h.page(needs(scopeManage, askMove)))
	r.Post(Prefix+"queues/{name}/move", h.action(moveEvents, askMove))
	r.Get(Prefix+"queues/{name}/delete", h.page(needs(scopeManage, confirmDeleteQueue)))
	r.Post(Prefix+"queues/{name}/delete", h.action(deleteQueue, confirmDeleteQueue))
	r.Post(Prefix+"queues/{name}/groups", h.action(changeGroup, showQueue))
	r.Post(Prefix+"queues/{name}/post", h.action(postEvent, showQueue))

	r.Get(Prefix+"queues/{name}/events", h.page(showWaitingEvents, withCursor(waitingFields)...))
	r.Get(Prefix+"history", h.page(showHistory, withCursor(historyFields)...))
	r.Get(Prefix+"history/download", h.download(historyExport, append([]string{"format"}, historyFields...)...))
	r.Get(Prefix+"history/errors", h.page(showCauses, causeFields...))
	r.Get(Prefix+"history/requeue", h.page(confirmRequeueSelected, "back", "id+"))
	r.Post(Prefix+"history/requeue", h.action(requeueSelected, confirmRequeueSelected))
	r.Get(Prefix+"redrives", h.page(listRedrives, "state", "cursor"))
	r.Post(Prefix+"redrives", h.action(createRedrive, askRedrive))
	r.Get(Prefix+"redrives/new", h.page(askRedrive, redriveFields...))
	r.Get(Prefix+"redrives/{id}", h.page(showRedrive))
	r.Post(Prefix+"redrives/{id}/pause", h.action(pauseRedrive, showRedrive))
	r.Post(Prefix+"redrives/{id}/resume", h.action(resumeRedrive, showRedrive))
	r.Get(Prefix+"redrives/{id}/cancel", h.page(confirmCancelRedrive))
	r.Post(Prefix+"redrives/{id}/cancel", h.action(cancelRedrive, confirmCancelRedrive))

	r.Get(Prefix+"find", h.answer(findEvent, "id"))
	r.Get(Prefix+"events/{id}", h.page(showEvent))
	r.Get(Prefix+"events/{id}/payload", h.answer(downloadPayload))
	r.Get(Prefix+"events/{id}/raw", h.download(rawBodyOf))
	r.Post(Prefix+"events/{id}/run", h.action(runEvent, showEvent))
	r.Get(Prefix+"events/{id}/cancel", h.page(needs(scopeManage, confirmCancel)))
	r.Post(Prefix+"events/{id}/cancel", h.action(cancelEvent, confirmCancel))
	r.Get(Prefix+"events/{id}/requeue", h.page(needs(scopeManage, confirmRequeue)))
	r.Post(Prefix+"events/{id}/requeue", h.action(requeueEvent, confirmRequeue))

	r.Get(Prefix+"queues/{name}/push", h.page(showPush, "status", "outcome", "event", "from", "to", "cursor"))
	r.Get(Prefix+"queues/{name}/push/new", h.page(needs(scopeManage, newPush)))
	r.Post(Prefix+"queues/{name}/push/new", h.reveal(createPush, needs(scopeManage, newPush)))
	r.Get(Prefix+"queues/{name}/push/change", h.page(needs(scopeManage, changePush)))
	r.Post(Prefix+"queues/{name}/push/change", h.action(storePush, needs(scopeManage, changePush)))
	r.Post(Prefix+"queues/{name}/push/enable", h.action(enablePush, showPush))
	r.Post(Prefix+"queues/{name}/push/test", h.trial(testPush, showPush))
	r.Post(Prefix+"queues/{name}/push/again", h.action(sendAgain, showPush))
	r.Get(Prefix+"queues/{name}/push/secret", h.page(needs(scopeManage, confirmRotate)))
	r.Post(Prefix+"queues/{name}/push/secret", h.reveal(rotateSecret, needs(scopeManage, confirmRotate)))
	r.Get(Prefix+"queues/{name}/push/delete", h.page(needs(scopeManage, confirmDeletePush)))
	r.Post(Prefix+"queues/{name}/push/delete", h.action(deletePush, needs(scopeManage, confirmDeletePush)))

	r.Get(Prefix+"schedules", h.page(listSchedules, "owner", "queue", "status", "due_before", "order", "cursor"))
	r.Get(Prefix+"schedules/new", h.page(needs(scopeRead, newSchedule), "queue", "topic", "owner"))
	r.Post(Prefix+"schedules/preview", h.trial(previewNewSchedule, newSchedule))
	r.Post(Prefix+"schedules/create", h.action(createSchedule, newSchedule))
	r.Get(Prefix+"schedules/{id}", h.page(showSchedule, "runs", "cursor"))
	r.Get(Prefix+"schedules/{id}/change", h.page(changeSchedule))
	r.Post(Prefix+"schedules/{id}/preview", h.trial(previewChange, changeSchedule))
	r.Post(Prefix+"schedules/{id}/change", h.action(storeChange, changeSchedule))
	r.Post(Prefix+"schedules/{id}/pause", h.action(pauseSchedule, showSchedule))
	r.Post(Prefix+"schedules/{id}/resume", h.action(resumeSchedule, showSchedule))
	r.Post(Prefix+"schedules/{id}/run", h.action(runSchedule, showSchedule))
	r.Get(Prefix+"schedules/{id}/delete", h.page(needs(scopeManage, confirmDelete)))
	r.Post(Prefix+"schedules/{id}/delete", h.action(deleteSchedule, confirmDelete))
	r.Get(Prefix+"owners", h.page(listOwners, "cursor"))

	r.Get(Prefix+"subscriptions", h.page(listSubscriptions, "cursor"))
	r.Get(Prefix+"subscriptions/{name}", h.page(showSubscription))
	r.Post(Prefix+"subscriptions/{name}/pause", h.action(pauseSubscription, showSubscription))
	r.Post(Prefix+"subscriptions/{name}/resume", h.action(resumeSubscription, showSubscription))
	r.Post(Prefix+"subscriptions/{name}/seek", h.trial(needs(scopeManage, confirmSeek), showSubscription))
	r.Post(Prefix+"subscriptions/{name}/seek/confirmed", h.action(seekSubscription, showSubscription))
	r.Post(Prefix+"subscriptions/{name}/replay", h.trial(needs(scopeManage, confirmReplay), showSubscription))
	r.Post(Prefix+"subscriptions/{name}/replay/confirmed", h.action(replaySubscription, showSubscription))
	r.Get(Prefix+"subscriptions/{name}/delete", h.page(needs(scopeManage, confirmUnsubscribe)))
	r.Post(Prefix+"subscriptions/{name}/delete", h.action(deleteSubscription, confirmUnsubscribe))
	r.Get(Prefix+"topics", h.page(listTopics, "cursor"))
	r.Post(Prefix+"topics/publish", h.action(publish, listTopics))
	r.Get(Prefix+"topics/{topic}", h.page(showTopic))
	r.Post(Prefix+"topics/{topic}/publish", h.action(publish, showTopic))
	r.Get(Prefix+"log/{position}", h.page(showPublished))
	r.Get(Prefix+"fleet", h.page(showFleet, "type", "worker"))

	r.Get(Prefix+"keys", h.page(listKeys, "cursor"))
	r.Get(Prefix+"keys/new", h.page(needs(scopeAdmin, newKey)))
	r.Post(Prefix+"keys/create", h.reveal(createKey, newKey))
	r.Get(Prefix+"keys/{id}", h.page(showKey))
	r.Post(Prefix+"keys/{id}/change", h.action(storeKey, showKey))
	r.Post(Prefix+"keys/{id}/rotate", h.reveal(rotateKey, showKey))
	r.Get(Prefix+"keys/{id}/revoke", h.page(needs(scopeAdmin, confirmRevoke)))
	r.Post(Prefix+"keys/{id}/revoke", h.action(revokeKey, confirmRevoke))
	r.Get(Prefix+"audit", h.page(listAudit, "actor", "action", "target", "from", "to", "cursor"))
	r.Get(Prefix+"audit.csv", h.download(exportAudit("csv"), "actor", "action", "target", "from", "to"))
	r.Get(Prefix+"audit.ndjson", h.download(exportAudit("ndjson"), "actor", "action", "target", "from", "to"))

	r.Get(Prefix+"sources", h.page(listSources, "cursor"))
	r.Get(Prefix+"new/source", h.page(needs(scopeRead, needs(scopeManage, newSource)), "queue", "topic")) // not below sources: a source may be named new
	r.Post(Prefix+"new/source", h.action(createSource, needs(scopeManage, newSource)))
	r.Get(Prefix+"sources/{name}", h.page(showSource, "result", "from", "to", "cursor"))
	r.Get(Prefix+"sources/{name}/change", h.page(needs(scopeManage, changeSource)))
	r.Post(Prefix+"sources/{name}/change", h.action(storeSource, needs(scopeManage, changeSource)))
	r.Post(Prefix+"sources/{name}/pause", h.action(pauseSource, showSource))
	r.Post(Prefix+"sources/{name}/resume", h.action(resumeSource, showSource))
	r.Get(Prefix+"sources/{name}/test", h.page(needs(scopeManage, testSource)))
	r.Post(Prefix+"sources/{name}/test", h.trial(tryDelivery, needs(scopeManage, testSource)))
	r.Get(Prefix+"sources/{name}/delete", h.page(needs(scopeManage, confirmDeleteSource)))
	r.Post(Prefix+"sources/{name}/delete", h.action(deleteSource, needs(scopeManage, confirmDeleteSource)))
}

var errNoPage = problem(http.StatusNotFound, "No such page", "The address leads to no page. Something may have been deleted, or the address is incomplete.")

// notFound is the page of an address that there is not.
func notFound(*visit) (view, error) {
	return view{name: "error"}, errNoPage
}

// refuseMethod is the page of an address that is opened and not sent to, as that of a form is when it is loaded again, or of one that takes no other method.
func (h *Handler) refuseMethod(w http.ResponseWriter, r *http.Request) {
	path := cmp.Or(r.URL.RawPath, r.URL.Path)
	var allowed []string
	isForm := false
	if h.mux.Match(chi.NewRouteContext(), http.MethodGet, path) {
		allowed = append(allowed, http.MethodGet, http.MethodHead)
	}
	if h.mux.Match(chi.NewRouteContext(), http.MethodPost, path) {
		isForm = len(allowed) == 0
		allowed = append(allowed, http.MethodPost)
	}
	if len(allowed) == 0 { // chi knows some methods only, and looks no further for others
		h.showProblem(w, r, errNoPage)
		return
	}
	list := strings.Join(allowed, ", ")
	w.Header().Set("Allow", list)
	err := problem(http.StatusMethodNotAllowed, "Method not allowed", "The address takes "+list+".")
	if isForm {
		err = problem(http.StatusMethodNotAllowed, "Not a page", "The address is where a form is sent, and nothing was sent now. Go back to the page that has the form.")
	}
	h.showProblem(w, r, err)
}
