// Package protocodec is the codec for Protocol Buffers. It is a package of its own so that a program
// without Protobuf does not compile it. It has no registry of types: the Go type asked for is the schema.
package protocodec

import (
	"errors"
	"fmt"
	"reflect"

	"google.golang.org/protobuf/proto"

	"github.com/headrace-go/headrace/event"
)

// Codec encodes and decodes proto.Message values in the binary format. It is stateless.
// [event.Decode] is asked for the generated pointer type: event.Decode[*orderpb.Placed](d, msg).
//
// Fields that the Go type does not know are kept in it as unknown fields. Empty data is a message with all
// fields at their default; only nil data is none, see [event.ErrNoData].
var Codec event.AliasCodec = codec{}

type codec struct{}

// ContentType is application/protobuf, as CloudEvents' own format has it.
func (codec) ContentType() string { return "application/protobuf" }

// ContentTypes are the older names.
func (codec) ContentTypes() []string {
	return []string{"application/x-protobuf", "application/vnd.google.protobuf"}
}

// deterministic output makes equal messages equal bytes, within one build of the program.
var marshal = proto.MarshalOptions{Deterministic: true}

func (codec) Marshal(v any) ([]byte, error) {
	m, ok := v.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is no proto.Message", v)
	}
	if !m.ProtoReflect().IsValid() {
		return nil, fmt.Errorf("a nil %T", v)
	}
	return marshal.Marshal(m)
}

// Unmarshal decodes into v, which is a proto.Message or a pointer to one's pointer type.
func (codec) Unmarshal(data []byte, v any) error {
	if m, ok := v.(proto.Message); ok {
		return proto.Unmarshal(data, m)
	}
	ptr := reflect.ValueOf(v)
	if ptr.Kind() != reflect.Pointer || ptr.IsNil() {
		return errors.New("not a pointer")
	}
	if t := ptr.Type().Elem(); t.Kind() == reflect.Pointer {
		fresh := reflect.New(t.Elem())
		if m, ok := fresh.Interface().(proto.Message); ok {
			if err := proto.Unmarshal(data, m); err != nil {
				return err
			}
			ptr.Elem().Set(fresh)
			return nil
		}
	}
	return fmt.Errorf("%s is no proto.Message", ptr.Type().Elem())
}
