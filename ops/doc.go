// Package ops has no code. It tests what operators are given: the Prometheus rules and the Grafana dashboard beside
// it, against the metrics that the telemetry package emits.
package ops
