package pgxstore_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headrace-go/headrace/outbox"
)

// takeover is how long the leases of a relay that was not heard of may stay where they are: a lease of 1 s, the quarter of one until
// the next look, and generous room for a busy machine.
const takeover = 10 * time.Second

// Two relays in processes of their own share the buckets. One dies, or hangs: the other one has all of them once the
// leases have run out (1 s here). The one that hung gets its share again, and has published nothing meanwhile.
func TestRelayThatDiesOrHangsIsReplaced(t *testing.T) {
	for name, signal := range map[string]syscall.Signal{"SIGKILL": syscall.SIGKILL, "SIGSTOP": syscall.SIGSTOP} {
		t.Run(name, func(t *testing.T) {
			store := outboxStore(t)
			schema, _ := outboxSchemas.Load(store)
			ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
			defer cancel()
			file := filepath.Join(t.TempDir(), "published")
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			start := func() *exec.Cmd {
				cmd := exec.Command(os.Args[0], "-test.run=^TestRelayProcess$")
				cmd.Env = append(os.Environ(), relaySchema+"="+schema.(string), relayFile+"="+file)
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					_ = cmd.Process.Kill()
					_ = cmd.Wait()
				})
				return cmd
			}
			leases := strings.Replace(outboxTable(t, store), "headrace_outbox", "headrace_outbox_lease", 1)
			held := func(cmd *exec.Cmd) (n int) {
				err := store.Pool().QueryRow(ctx, "SELECT count(*) FROM "+leases+" WHERE owner LIKE $1 AND expires_at > clock_timestamp()",
					fmt.Sprintf("%%-%d-%%", cmd.Process.Pid)).Scan(&n)
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
			published := func() (keys map[string][]string, n int) {
				f, err := os.Open(file)
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				keys = map[string][]string{}
				for s := bufio.NewScanner(f); s.Scan(); n++ {
					key, id, _ := strings.Cut(s.Text(), " ")
					keys[key] = append(keys[key], id)
				}
				return keys, n
			}
			rows := 0
			publish := func(when string) {
				for k := range outbox.Buckets {
					commitRows(ctx, t, store, "t", fmt.Sprintf("k%02d", k), rows, 1)
				}
				rows++
				waitFor(ctx, t, when, func() bool { _, n := published(); return n >= rows*outbox.Buckets })
			}

			one, two := start(), start()
			waitFor(ctx, t, "both have their share", func() bool { return held(one) == 32 && held(two) == 32 })
			publish("both publish")
			if err := one.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			soon, cancelSoon := context.WithTimeout(ctx, takeover)
			defer cancelSoon()
			waitFor(soon, t, "the other has all buckets", func() bool { return held(two) == outbox.Buckets })
			publish("the other publishes all")
			if signal == syscall.SIGSTOP {
				if err := one.Process.Signal(syscall.SIGCONT); err != nil {
					t.Fatal(err)
				}
			} else {
				one = start()
			}
			waitFor(ctx, t, "both have their share again", func() bool { return held(one) == 32 && held(two) == 32 })
			publish("both publish again")
			keys, n := published()
			for key, ids := range keys {
				if !slices.IsSorted(ids) {
					t.Errorf("key %s: published %q, want in order", key, ids)
				}
			}
			if n != rows*outbox.Buckets || len(keys) != outbox.Buckets {
				t.Errorf("published %d times of %d keys; nothing was in flight: want each of %d rows once", n, len(keys), rows*outbox.Buckets)
			}
		})
	}
}
