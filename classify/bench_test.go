package classify_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/headrace-go/headrace/classify"
)

var benchmarks = []struct {
	name   string
	err    error
	allocs float64 // at most
}{
	{"nil", nil, 0},
	{"marked", fmt.Errorf("charge: %w", classify.Permanent(errStolen)), 0},
	{"unknown", fmt.Errorf("charge: %w", errStolen), 0},
	{"deadline", fmt.Errorf("charge: %w", fmt.Errorf("call: %w", context.DeadlineExceeded)), 0},
	{"postgres", fmt.Errorf("charge: %w", fmt.Errorf("commit: %w", &pgconn.PgError{Code: "40001"})), 0},
	{"http", fmt.Errorf("charge: %w", &classify.HTTPError{Status: 503}), 0},
	{"json", fmt.Errorf("decode: %w", &json.SyntaxError{}), 0},
	{"joined", errors.Join(fmt.Errorf("charge: %w", io.EOF), fmt.Errorf("rollback: %w", io.EOF)), 0},
	{"panic", &classify.PanicError{Value: "boom"}, 0},
	{"grpc", fmt.Errorf("charge: %w", status.Error(codes.Unavailable, "m")), 20},
}

func BenchmarkClassify(b *testing.B) {
	c := classify.New(classify.RetryPanics)
	for _, row := range benchmarks {
		b.Run(row.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c.Classify(row.err)
			}
		})
	}
}

func TestClassifyDoesNotAllocate(t *testing.T) {
	for _, row := range benchmarks {
		var c *classify.Classifier
		if got := testing.AllocsPerRun(100, func() { c.Classify(row.err) }); got > row.allocs {
			t.Errorf("Classify(%s: %v) allocates %v times, want at most %v", row.name, row.err, got, row.allocs)
		}
	}
}
