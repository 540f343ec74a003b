package pages

import (
	"net/http"

	"github.com/queued/queued/internal/ui"
)

// routes is every page and every form there is.
func (h *Handler) routes() {
	r := h.mux
	r.NotFound(h.page(notFound))
	r.MethodNotAllowed(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusMethodNotAllowed) })
	r.Get(Prefix+"static/{file}", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Del("Cache-Control")
		if !ui.ServeAsset(w, r, r.PathValue("file")) {
			http.NotFound(w, r)
		}
	})
	r.Get(Prefix+"live", h.serveLive)

	r.Get(Prefix, h.page(listQueues))
	r.Get(Prefix+"queues", h.page(listQueues))
	r.Get(Prefix+"queues/{name}", h.page(showQueue))
	r.Post(Prefix+"queues/{name}/pause", h.action(pauseQueue, showQueue))
	r.Post(Prefix+"queues/{name}/resume", h.action(resumeQueue, showQueue))
	r.Get(Prefix+"queues/{name}/purge", h.page(confirmPurge))
	r.Post(Prefix+"queues/{name}/purge", h.action(purgeQueue, confirmPurge))
	r.Post(Prefix+"queues/{name}/post", h.action(postEvent, showQueue))
}

// notFound is the page of an address that there is not.
func notFound(*visit) (view, error) {
	return view{name: "error"}, problem(http.StatusNotFound, "No such page", "The address leads to no page. Something may have been deleted, or the address is incomplete.")
}
