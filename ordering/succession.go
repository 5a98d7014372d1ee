package ordering

import (
	"context"
	"reflect"

	"github.com/ThreeDotsLabs/watermill/message"
)

// routerKey is the type of the keys of a router's values. It is not exported: a context that is asked for one tells it.
var routerKey = func() reflect.Type {
	k := &keyTeller{Context: context.Background()}
	message.HandlerNameFromCtx(k)
	return k.seen
}()

type keyTeller struct {
	context.Context
	seen reflect.Type
}

func (k *keyTeller) Value(key any) any {
	k.seen = reflect.TypeOf(key)
	return nil
}

// maxSuccessors is how many deliveries one goroutine runs after its first, so that what it has grown to does not stay for ever.
const maxSuccessors = 256

func (in *Intake) successors() int {
	if in.cfg.Successors {
		return maxSuccessors
	}
	return 0
}

// successor returns the next delivery to run if it belongs to s; if not, it is handed to its own router. in.mu is held.
func (in *Intake) successor(s *subscription) *delivery {
	d := in.next()
	if d != nil && d.sub != s {
		d.sub.out <- &d.View
		return nil
	}
	return d
}
