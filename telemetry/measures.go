package telemetry

import (
	"slices"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// maxErrorTypes bounds the combinations of outcome and error type of one consumer or topic; beyond it
// the error type is "_OTHER". The SDK's own limit is 2,000 attribute sets per instrument.
const maxErrorTypes = 100

// measures holds the options of a consumer's or a topic's measurements, made once for each outcome and
// error type.
type measures struct {
	base  []attribute.KeyValue
	cache cache[measureKey, *measure]
}

type measureKey struct {
	outcome, errorType string
}

// measure is one attribute set as both kinds of option.
type measure struct {
	record []metric.RecordOption
	add    []metric.AddOption
}

// get returns the options for an outcome and an error type; "" leaves the attribute out.
func (m *measures) get(outcome, errorType string) *measure {
	k := measureKey{outcome, errorType}
	if found, ok := m.cache.peek(k); ok {
		return found
	}
	if errorType != "" && errorType != errorTypeOther && m.cache.full(maxErrorTypes) {
		return m.get(outcome, errorTypeOther)
	}
	// Twice the limit leaves room for the outcomes, which are few, with "_OTHER" and without.
	return m.cache.get(k, 2*maxErrorTypes, func() *measure { return m.make(k) })
}

func (m *measures) make(k measureKey) *measure {
	attrs := slices.Clone(m.base)
	if k.outcome != "" {
		attrs = append(attrs, keyOutcome.String(k.outcome))
	}
	if k.errorType != "" {
		attrs = append(attrs, keyErrorType.String(k.errorType))
	}
	set := metric.WithAttributeSet(attribute.NewSet(attrs...))
	return &measure{record: []metric.RecordOption{set}, add: []metric.AddOption{set}}
}
