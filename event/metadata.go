package event

// The metadata keys of a message, the same on every broker; an adapter maps them to its own binding.
// CloudEvents attributes are written as the Kafka binding writes them. The keys are a wire contract:
// see DESIGN.md before you change one.
const (
	MetaID            = "ce_id"
	MetaSource        = "ce_source"
	MetaSpecVersion   = "ce_specversion"
	MetaType          = "ce_type"
	MetaTime          = "ce_time"
	MetaSubject       = "ce_subject"
	MetaDataSchema    = "ce_dataschema"
	MetaContentType   = "content-type"     // the attribute datacontenttype
	MetaSchemaVersion = "ce_schemaversion" // extension: whole number, 1 when absent
	MetaPartitionKey  = "ce_partitionkey"  // extension: partitioning
	MetaSequence      = "ce_sequence"      // extension: sequence
	MetaCorrelationID = "ce_correlationid" // extension of ours
	MetaCausationID   = "ce_causationid"   // extension of ours

	// MetaWatermillCorrelationID is read when MetaCorrelationID is absent; it is not written.
	MetaWatermillCorrelationID = "correlation_id"

	// The W3C propagation keys, in no namespace.
	MetaTraceParent = "traceparent"
	MetaTraceState  = "tracestate"
	MetaBaggage     = "baggage"

	// MetaPrefix begins every key of Headrace's own.
	MetaPrefix = "headrace_"

	// MetaFrozenID holds the id that Identify gave a message before it was dead-lettered.
	// Only IdentifyRedriven reads it.
	MetaFrozenID = MetaPrefix + "id"
)
