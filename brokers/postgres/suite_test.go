package postgres_test

import (
	"context"
	"net"
	"strconv"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/internal/adaptertest"
	"github.com/headrace-go/headrace/headracetest/brokertest"
	"github.com/headrace-go/headrace/internal/testserver"
)

func TestConformance(t *testing.T) {
	e := newEnv(t)
	insert := func(tb testing.TB, topic string, metadata any, payload []byte) {
		// A topic gets its consumer "c" with the first subscription; a program that writes rows itself may come before.
		e.exec("INSERT INTO "+e.table("group")+" (topic, consumer, base) SELECT $1, '', true WHERE NOT EXISTS (SELECT FROM "+
			e.table("group")+" WHERE topic = $1)", topic)
		e.exec("INSERT INTO "+e.table("message")+" (group_id, bucket, msg_key, metadata, payload) SELECT id, (SELECT coalesce(max(bucket), 0) FROM "+
			e.table("message")+" m WHERE m.group_id = g.id), 'key', $2, $3 FROM "+e.table("group")+" g WHERE topic = $1", topic, metadata, payload)
	}
	brokertest.Run(t, brokertest.Suite{
		New: func(tb testing.TB) brokers.Broker {
			config := e.config()
			config.LeaseTTL = short
			return open(tb, config)
		},
		PublishForeign: func(tb testing.TB, _ brokers.Broker, topic string, payload []byte) {
			insert(tb, topic, "{}", payload)
		},
		PublishUndecodable: func(tb testing.TB, _ brokers.Broker, topic string) []byte {
			insert(tb, topic, `{"ce_type": 7`, []byte("raw\x00\xff"))
			return []byte("raw\x00\xff")
		},
		Behind: func(tb testing.TB) (brokers.Broker, brokertest.Server) {
			var p *testserver.Proxy
			config := e.config()
			config.LeaseTTL = short
			config.Pool = newPool(tb, testserver.Postgres(tb), func(c *pgxpool.Config) {
				p = testserver.NewProxy(tb, net.JoinHostPort(c.ConnConfig.Host, strconv.Itoa(int(c.ConnConfig.Port))))
				c.ConnConfig.DialFunc = func(ctx context.Context, network, _ string) (net.Conn, error) {
					return (&net.Dialer{}).DialContext(ctx, network, p.Addr())
				}
			})
			return open(tb, config), p
		},
	})
}

func TestUniversal(t *testing.T) { universal(t, adaptertest.Universal) }

// universal runs Watermill's own suite. It publishes without keys, which have no order here; with one key for all messages
// and one un-acked delivery the broker keeps the order that the suite calls guaranteed.
func universal(t *testing.T, suite adaptertest.Suite) {
	adaptertest.Windows(t, func(t *testing.T, window int) {
		// It publishes some 40,000 messages one by one and does not crash the server: the commits need no disk.
		e := newEnv(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["synchronous_commit"] = "off" })
		config, ordered := e.config(), window == 1
		if ordered {
			config.Key = func(*message.Message) []byte { return []byte("one") }
		}
		suite(t, open(t, config), window, tests.Features{GuaranteedOrder: ordered, GuaranteedOrderWithSingleSubscriber: ordered})
	})
}
