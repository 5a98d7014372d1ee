package runtime

import (
	"context"
	"log/slog"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/headrace-go/headrace/internal/flight"
)

const (
	levelDebug = slog.LevelDebug
	levelError = slog.LevelError
)

// routerLogger brings the router's logs to slog: its errors about a message as errors, its life as debug, and
// nothing of what it logs at Trace for each message. Part of its life is the end of all subscriptions, which it
// calls an error: it is how we stop it, and watch and drain report where it was not meant.
type routerLogger struct{ log *slog.Logger }

func (l routerLogger) Error(msg string, err error, fields watermill.LogFields) {
	level := slog.LevelDebug
	if _, aboutMessage := fields["message_uuid"]; aboutMessage {
		level = slog.LevelError
	}
	l.write(level, msg, fields, slog.Any("error", err))
}

func (l routerLogger) Info(msg string, fields watermill.LogFields) {
	l.write(slog.LevelDebug, msg, fields)
}

func (l routerLogger) Debug(msg string, fields watermill.LogFields) {
	l.write(slog.LevelDebug, msg, fields)
}

func (l routerLogger) Trace(string, watermill.LogFields) {}

func (l routerLogger) With(fields watermill.LogFields) watermill.LoggerAdapter {
	args := make([]any, 0, len(fields))
	for k, v := range fields {
		args = append(args, slog.Any(k, v))
	}
	return routerLogger{l.log.With(args...)}
}

func (l routerLogger) write(level slog.Level, msg string, fields watermill.LogFields, attrs ...slog.Attr) {
	ctx := context.Background()
	if !l.log.Enabled(ctx, level) {
		return
	}
	for k, v := range fields {
		attrs = append(attrs, slog.Any(k, v))
	}
	l.log.LogAttrs(ctx, level, "router: "+msg, attrs...)
}

// attrs identifies a delivery in a log line.
func (c *Consumer) attrs(f *flight.Flight, err error) []slog.Attr {
	attrs := []slog.Attr{
		slog.String("consumer", c.config.Name),
		slog.String("topic", f.Topic),
		slog.String("id", f.ID),
		slog.Int("attempt", f.Attempt),
	}
	if err != nil {
		attrs = append(attrs, slog.Any("error", err))
	}
	return attrs
}
