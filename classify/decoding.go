package classify

import (
	"encoding/base64"
	"encoding/csv"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"strconv"
	"time"
)

// decoding knows errors that say that some bytes are not what they should be. The same bytes will not
// decode the next time either.
func decoding(err error) Result {
	switch err.(type) {
	case *json.SyntaxError, *json.UnmarshalTypeError, *json.InvalidUnmarshalError,
		*json.UnsupportedTypeError, *json.UnsupportedValueError:
		return poison("json")
	case *xml.SyntaxError, xml.UnmarshalError, *xml.TagPathError, *csv.ParseError, base64.CorruptInputError,
		hex.InvalidByteError, *strconv.NumError, *time.ParseError:
		return poison("decode")
	}
	if err == hex.ErrLength {
		return poison("decode")
	}
	return Result{}
}
