package server

import (
	"net/http"
	"time"

	"orchard/sandboxd/internal/mark"
	"orchard/sandboxd/internal/wire"
)

// Health answers GET /v1/health and GET /v1/stats; neither is activity.
type Health struct {
	ID, Version string
	Maker       mark.Maker
	Running     func() int
	Sealed      func() bool
	Began       time.Time
}

// Routes registers both.
func (h *Health) Routes(mux *http.ServeMux) {
	mux.HandleFunc("GET /v1/health", h.health)
	mux.HandleFunc("GET /v1/stats", h.stats)
}

func (h *Health) health(w http.ResponseWriter, _ *http.Request) {
	wire.JSON(w, http.StatusOK, map[string]any{"id": h.ID, "version": h.Version, "wire": 1,
		"uptime_s": time.Since(h.Began).Seconds(), "processes": h.Running(), "commands_mark": h.Maker.Kind(), "sealed": h.Sealed()})
}

func (h *Health) stats(w http.ResponseWriter, _ *http.Request) {
	wire.JSON(w, http.StatusOK, h.Maker.Stats())
}
