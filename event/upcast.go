package event

import (
	"errors"
	"fmt"
	"slices"
)

// Upcasters bring the data of older schema versions to the newest that this program knows, one version
// at a time, so that a handler knows one form only. The zero value is ready. Fill it at start, before
// [NewDecoder]: it is not safe for concurrent use.
type Upcasters struct {
	steps map[string]map[int]Upcaster
	errs  []error
}

// Upcaster turns data of one schema version into data of the next. It gets a copy, which it may change.
// It must be pure: it runs at each attempt, and its error is permanent.
type Upcaster func(data []byte) ([]byte, error)

// Add registers the step from version to version + 1 of an event type. What is wrong with it (an empty
// type, a version below 1, a nil function, a second step from the same version) is reported by
// [NewDecoder], with all the other mistakes. A step always goes up by one, so there can be no cycle.
func (u *Upcasters) Add(eventType string, version int, fn Upcaster) {
	switch {
	case eventType == "":
		u.errs = append(u.errs, errors.New("upcaster: the event type is empty"))
	case version < 1:
		u.errs = append(u.errs, fmt.Errorf("upcaster of %q: version %d is below 1", eventType, version))
	case fn == nil:
		u.errs = append(u.errs, fmt.Errorf("upcaster of %q from version %d: the function is nil", eventType, version))
	case u.steps[eventType][version] != nil:
		u.errs = append(u.errs, fmt.Errorf("upcaster of %q from version %d: registered twice", eventType, version))
	default:
		if u.steps == nil {
			u.steps = make(map[string]map[int]Upcaster)
		}
		if u.steps[eventType] == nil {
			u.steps[eventType] = make(map[int]Upcaster)
		}
		u.steps[eventType][version] = fn
	}
}

// chain holds the steps of one type without a gap; the first one is from version oldest.
type chain struct {
	oldest int
	steps  []Upcaster
}

// chains checks what was added and gives it in a form that does not change any more.
func (u *Upcasters) chains() (map[string]chain, error) {
	if u == nil {
		return nil, nil
	}
	errs := slices.Clone(u.errs)
	chains := make(map[string]chain, len(u.steps))
	for eventType, steps := range u.steps {
		versions := make([]int, 0, len(steps))
		for v := range steps {
			versions = append(versions, v)
		}
		slices.Sort(versions)
		c := chain{oldest: versions[0]}
		for i, v := range versions {
			if want := c.oldest + i; v != want {
				errs = append(errs, fmt.Errorf("upcasters of %q: a gap: none from version %d", eventType, want))
				break
			}
			c.steps = append(c.steps, steps[v])
		}
		chains[eventType] = c
	}
	slices.SortFunc(errs, func(a, b error) int {
		switch {
		case a.Error() < b.Error():
			return -1
		case a.Error() > b.Error():
			return 1
		}
		return 0
	})
	return chains, errors.Join(errs...)
}

// upcast brings data from version to the newest one. A version that is newer than that is passed as it
// is: the reader tolerates what was added. One older than the oldest step has no way up.
func (c chain) upcast(version int, data []byte) ([]byte, error) {
	if version < c.oldest {
		return nil, fmt.Errorf("no upcaster from this version: the oldest is from %d", c.oldest)
	}
	if version-c.oldest >= len(c.steps) {
		return data, nil
	}
	// A step may work in place. The message's bytes are still needed: for a retry, for the dead letter.
	data = append([]byte{}, data...)
	for i, step := range c.steps[version-c.oldest:] {
		var err error
		if data, err = step(data); err != nil {
			return nil, fmt.Errorf("upcast from version %d: %w", version+i, err)
		}
	}
	return data, nil
}
