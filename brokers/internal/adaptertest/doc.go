// Package adaptertest is what the tests of the adapters have in common beside the suite of brokertest: messages that are published and
// read within a limit, and Watermill's universal suite.
package adaptertest
