package headracetest

import "testing"

// ConsumerOf is Consumer for a test of the kit itself: its subtests are whatever subtest makes of them.
func ConsumerOf(t testing.TB, spec Spec, subtest func(name string, f func(testing.TB))) {
	consumer(t, spec, subtest)
}

// Guarantees are all of them, in the order in which they are checked.
func Guarantees() (all []Guarantee) {
	for _, c := range checks {
		all = append(all, c.guarantee)
	}
	return all
}
