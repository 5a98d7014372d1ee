package pace

import (
	"encoding/json"
	"fmt"
	"io"
)

// Lines writes rows as JSON, one a line.
func Lines[R any](w io.Writer, rows []R) error {
	enc := json.NewEncoder(w)
	for _, r := range rows {
		if err := enc.Encode(r); err != nil {
			return err
		}
	}
	return nil
}

// Ratio writes v in format, or "-" if there was nothing to compare with: 0.
func Ratio(format string, v float64) string {
	if v == 0 {
		return "-"
	}
	return fmt.Sprintf(format, v)
}
