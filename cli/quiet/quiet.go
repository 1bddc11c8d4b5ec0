// Package quiet leaves out of the log what libraries complain of and what is
// nobody's concern.
//
// In come records of libraries; out come those that somebody may want to read. What
// is left out is told elsewhere, or is how streams end every day.
package quiet

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
)

// complaint is a line that is left out: parts of its message and of its error.
type complaint struct{ message, err string }

var complaints = []complaint{
	// The client of a stream has gone.
	{"Error on socket receive", ""},
	{"Error proxying data from client to backend", ""},
	{"Error proxying data from backend to client", ""},
	// Whoever asked the runtime has the error, and users have events.
	{" from runtime service failed", ""},
	{" from image service failed", ""},
	// A pod has gone, and with it its node's right to see what it refers to.
	{"Failed to watch", "no relationship found between node"},
	// A namespace goes, and events of its last moments with it.
	{"Server rejected event", "because it is being terminated"},
	{"Server rejected event", `namespaces "`},
}

// New is a handler that has another one handle the rest.
func New(next slog.Handler) slog.Handler { return handler{next} }

type handler struct{ slog.Handler }

// Handle implements slog.Handler.
func (h handler) Handle(ctx context.Context, r slog.Record) error {
	if harmless(r) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler { return New(h.Handler.WithAttrs(attrs)) }

// WithGroup implements slog.Handler.
func (h handler) WithGroup(name string) slog.Handler { return New(h.Handler.WithGroup(name)) }

func harmless(r slog.Record) bool {
	err := ""
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "err" {
			err = fmt.Sprint(a.Value.Any())
		}
		return a.Key != "err"
	})
	for _, c := range complaints {
		if strings.Contains(r.Message, c.message) && strings.Contains(err, c.err) {
			return true
		}
	}
	return false
}
