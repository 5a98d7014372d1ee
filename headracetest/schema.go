package headracetest

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// schema is one JSON Schema.
type schema struct{ compiled *jsonschema.Schema }

// compile reads schemas by event type. They may refer to each other, and to nothing else.
func compile(texts map[string][]byte) (map[string]schema, error) {
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	compiler.UseLoader(noLoader{})
	types := slices.Sorted(maps.Keys(texts))
	addresses := map[string]string{}
	for _, t := range types {
		document, err := jsonschema.UnmarshalJSON(bytes.NewReader(texts[t]))
		if err != nil {
			return nil, fmt.Errorf("Spec.Schemas[%q] is not JSON: %w", t, err)
		}
		addresses[t] = addressOf(t, document)
		if err := compiler.AddResource(addresses[t], document); err != nil {
			return nil, fmt.Errorf("Spec.Schemas[%q]: %w", t, err)
		}
	}
	schemas := map[string]schema{}
	for _, t := range types {
		compiled, err := compiler.Compile(addresses[t])
		if err != nil {
			return nil, fmt.Errorf("Spec.Schemas[%q]: %w", t, err)
		}
		schemas[t] = schema{compiled}
	}
	return schemas, nil
}

// addressOf is the URL that a schema is referred to by: its $id, if that is absolute.
func addressOf(eventType string, document any) string {
	object, _ := document.(map[string]any)
	id, _ := object["$id"].(string)
	if u, err := url.Parse(id); err == nil && u.IsAbs() {
		return id
	}
	return "headracetest:///" + url.PathEscape(eventType)
}

// noLoader keeps the compiler from files and from the network.
type noLoader struct{}

func (noLoader) Load(address string) (any, error) {
	return nil, fmt.Errorf("%s is not among Spec.Schemas, and nothing is loaded from elsewhere", address)
}

// validate says what is wrong with data, and where.
func (s schema) validate(data []byte) error {
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("its data is not JSON: %w", err)
	}
	if err := s.compiled.Validate(value); err != nil {
		_, faults, _ := strings.Cut(err.Error(), "\n") // the first line names the schema
		return errors.New(strings.TrimPrefix(strings.ReplaceAll(faults, "\n", "; "), "- "))
	}
	return nil
}
