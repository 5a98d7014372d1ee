package telemetry

import (
	"context"
	"log/slog"

	"go.opentelemetry.io/otel/trace"
)

// LogHandler returns h with trace_id and span_id added to every record whose context has a span, so that
// logs join traces. They stand at the top, outside any group. Log with the message's context:
//
//	slog.InfoContext(ctx, "order placed", "order", id)
func LogHandler(h slog.Handler) slog.Handler {
	return &logHandler{Handler: h, top: h}
}

type logHandler struct {
	slog.Handler                                   // with everything that With and WithGroup added
	top          slog.Handler                      // as it was before the first group
	added        []func(slog.Handler) slog.Handler // since then
}

func (l *logHandler) Handle(ctx context.Context, r slog.Record) error {
	sc := trace.SpanContextFromContext(ctx)
	if !sc.IsValid() {
		return l.Handler.Handle(ctx, r)
	}
	ids := []slog.Attr{
		slog.String("trace_id", sc.TraceID().String()),
		slog.String("span_id", sc.SpanID().String()),
	}
	if len(l.added) == 0 {
		r = r.Clone()
		r.AddAttrs(ids...)
		return l.Handler.Handle(ctx, r)
	}
	h := l.top.WithAttrs(ids)
	for _, add := range l.added {
		h = add(h)
	}
	return h.Handle(ctx, r)
}

func (l *logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return l.with(len(l.added) > 0, func(h slog.Handler) slog.Handler { return h.WithAttrs(attrs) })
}

func (l *logHandler) WithGroup(name string) slog.Handler {
	return l.with(name != "", func(h slog.Handler) slog.Handler { return h.WithGroup(name) })
}

// with applies add, and remembers it if it is in a group.
func (l *logHandler) with(grouped bool, add func(slog.Handler) slog.Handler) slog.Handler {
	next := &logHandler{Handler: add(l.Handler), top: l.top}
	if !grouped {
		next.top = next.Handler
		return next
	}
	next.added = append(append(next.added, l.added...), add)
	return next
}
