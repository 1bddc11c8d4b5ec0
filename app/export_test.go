package app

import "net/http"

// Handler answers requests, without the network.
func (a *App) Handler() http.Handler { return a.server }
