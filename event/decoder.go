package event

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
)

// DecoderConfig configures a [Decoder]. Its zero value reads JSON.
type DecoderConfig struct {
	// Codecs are chosen by content type, whatever its parameters and case. JSON is always there, for
	// application/json, text/json and every type that ends in +json, unless a codec here has the type.
	Codecs []Codec

	// Default decodes data without a content type. nil: JSON.
	Default Codec

	// Upcasters are copied. nil: none.
	Upcasters *Upcasters
}

// Decoder turns the data of messages into Go values. It does not change and is safe for concurrent use.
// A nil *Decoder works as that of a zero [DecoderConfig].
type Decoder struct {
	codecs   map[string]Codec
	fallback Codec
	chains   map[string]chain
}

var defaultDecoder = &Decoder{
	codecs:   map[string]Codec{jsonType: JSON, "text/json": JSON},
	fallback: JSON,
}

// NewDecoder checks the configuration as a whole; its error names everything that is wrong with it.
func NewDecoder(cfg DecoderConfig) (*Decoder, error) {
	d := &Decoder{codecs: make(map[string]Codec), fallback: cfg.Default}
	if d.fallback == nil {
		d.fallback = JSON
	}
	var errs []error
	for i, codec := range cfg.Codecs {
		if codec == nil {
			errs = append(errs, fmt.Errorf("field Codecs[%d]: nil", i))
			continue
		}
		types := []string{codec.ContentType()}
		if alias, ok := codec.(AliasCodec); ok {
			types = append(types, alias.ContentTypes()...)
		}
		for _, t := range types {
			name := mediaType(t)
			switch other, taken := d.codecs[name]; {
			case !strings.Contains(name, "/"):
				errs = append(errs, fmt.Errorf("field Codecs[%d] (%T): %q is not a media type", i, codec, t))
			case taken:
				errs = append(errs, fmt.Errorf("field Codecs[%d] (%T): %T has the media type %q already", i, codec, other, name))
			default:
				d.codecs[name] = codec
			}
		}
	}
	for t, codec := range defaultDecoder.codecs {
		if d.codecs[t] == nil {
			d.codecs[t] = codec
		}
	}
	chains, err := cfg.Upcasters.chains()
	d.chains = chains
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, fmt.Errorf("event.NewDecoder: %w", err)
	}
	return d, nil
}

// Decode parses msg and decodes its data into a T. See [DecodeData] for the rules.
// The envelope is returned with an error too, as far as it could be read.
func Decode[T any](d *Decoder, msg *message.Message) (T, Envelope, error) {
	var e Envelope
	v, err := decodeInto[T](d, msg, &e)
	return v, e, err
}

// decodeInto is [Decode] with the envelope in e.
func decodeInto[T any](d *Decoder, msg *message.Message, e *Envelope) (T, error) {
	if err := e.parse(msg); err != nil {
		var zero T
		return zero, err
	}
	return DecodeData[T](d, e)
}

// DecodeData decodes e.Data into a T: the upcasters of the type bring it to the newest schema version, the
// codec of the content type decodes it. e stays as it is.
//
// A T of []byte or json.RawMessage gets the upcast bytes themselves, as a copy, whatever the content type.
//
// Without data (see [ErrNoData]) a T that can be nil (pointer, slice, map, interface) is nil, so that a
// handler that wants tombstones asks for a pointer; every other T is refused.
//
// A T that is a [Validator] is asked whether it is valid.
//
// The error is an [*Error].
func DecodeData[T any](d *Decoder, e *Envelope) (T, error) {
	if d == nil {
		d = defaultDecoder
	}
	data, err := d.upcast(e)
	if err != nil {
		var zero T
		return zero, err
	}
	if v, ok := raw[T](data); ok {
		return v, nil
	}
	return unmarshal[T](d, e, data)
}

// raw copies data if a T is bytes.
func raw[T any](data []byte) (v T, ok bool) {
	switch b := any(&v).(type) {
	case *[]byte:
		*b = bytes.Clone(data)
	case *json.RawMessage:
		*b = bytes.Clone(data)
	default:
		return v, false
	}
	return v, true
}

// unmarshal decodes upcast data by the codec of the content type.
func unmarshal[T any](d *Decoder, e *Envelope, data []byte) (T, error) {
	var v, zero T
	if data == nil {
		return zero, noData[T](e)
	}
	codec := d.codec(e.ContentType)
	if codec == nil {
		return zero, invalid(MetaContentType, e.ContentType, errors.New("no codec for it"))
	}
	if err := codec.Unmarshal(data, &v); err != nil {
		if errors.Is(err, ErrNoData) {
			return zero, noData[T](e)
		}
		return zero, invalid("data", sizeOf(data, e.ContentType), fmt.Errorf("decode into %s: %w", reflect.TypeFor[T](), err))
	}
	checked, ok := any(&v).(Validator)
	if !ok {
		checked, ok = any(v).(Validator) // a pointer's own method
	}
	if ok {
		if err := checked.Validate(); err != nil {
			return zero, invalid("data", sizeOf(data, e.ContentType), fmt.Errorf("%s is not valid: %w", reflect.TypeFor[T](), err))
		}
	}
	return v, nil
}

// Validator is a type that knows what makes its values valid: a field that must be there, a range. Decoding
// calls it, and what it refuses is as permanent an error as data that cannot be decoded.
type Validator interface {
	// Validate names the field and the value that are wrong.
	Validate() error
}

func noData[T any](e *Envelope) error {
	switch t := reflect.TypeFor[T](); t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map, reflect.Interface:
		return nil
	default:
		return invalid("data", sizeOf(e.Data, e.ContentType), fmt.Errorf("decode into %s, which cannot be nil: %w", t, ErrNoData))
	}
}

func (d *Decoder) codec(contentType string) Codec {
	if contentType == "" {
		return d.fallback
	}
	if c := d.codecs[contentType]; c != nil {
		return c
	}
	t := mediaType(contentType)
	if t == "" {
		return d.fallback
	}
	if c := d.codecs[t]; c != nil {
		return c
	}
	if strings.HasSuffix(t, "+json") {
		return d.codecs[jsonType]
	}
	return nil
}

func (d *Decoder) upcast(e *Envelope) ([]byte, error) {
	c, ok := d.chains[e.Type]
	if !ok || e.Data == nil {
		return e.Data, nil
	}
	data, err := c.upcast(e.SchemaVersion, e.Data)
	if err != nil {
		return nil, invalid(MetaSchemaVersion, fmt.Sprintf("%d of %s", e.SchemaVersion, e.Type), err)
	}
	return data, nil
}
