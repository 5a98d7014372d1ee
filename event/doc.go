// Package event owns the envelope: CloudEvents 1.0 in binary and structured mode and plain payloads,
// message ids, correlation and causation, codecs and upcasters. It knows no broker and no runtime.
package event
