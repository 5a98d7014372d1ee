//go:build !race

package pulsar_test

const racing = false
