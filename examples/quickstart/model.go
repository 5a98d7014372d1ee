package main

// expectation is what a run must come to: the input handled by the most naive program there can be, one message
// after the other, that never crashes. It knows nothing of Headrace.
type expectation struct {
	effects map[string]webhook // by CloudEvents id
	stale   map[string]webhook // likewise
	dead    map[string]webhook // by the message's UUID
	items   map[string]item    // by item.key
	counts  map[string]int     // effects by event type
	changes map[string]bool    // the ids of the effects that must be told to the notifier
}

func expect(input []webhook) expectation {
	x := expectation{
		effects: map[string]webhook{}, stale: map[string]webhook{}, dead: map[string]webhook{},
		items: map[string]item{}, counts: map[string]int{}, changes: map[string]bool{},
	}
	seen := map[string]bool{}
	for _, w := range input {
		if w.injected == broken {
			x.dead[w.message.UUID] = w
			continue
		}
		if seen[w.id] {
			continue
		}
		seen[w.id] = true
		if w.item != nil {
			key := w.item.key()
			if newest, ok := x.items[key]; ok && w.item.version() < newest.version() {
				x.stale[w.id] = w
				continue
			}
			x.items[key] = *w.item
			x.changes[w.id] = true
		}
		x.effects[w.id] = w
		x.counts[w.message.Metadata["ce_type"]]++
	}
	return x
}
