package pulsar_test

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"strings"
	"testing"
	"time"

	pulsarclient "github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/crypto"

	"github.com/headrace-go/headrace/brokers/pulsar"
	"github.com/headrace-go/headrace/internal/testserver"
)

// keys are one pair.
type keys struct{ public, private []byte }

func (k keys) PublicKey(name string, meta map[string]string) (*crypto.EncryptionKeyInfo, error) {
	return crypto.NewEncryptionKeyInfo(name, k.public, meta), nil
}

func (k keys) PrivateKey(name string, meta map[string]string) (*crypto.EncryptionKeyInfo, error) {
	return crypto.NewEncryptionKeyInfo(name, k.private, meta), nil
}

func newKeys(t *testing.T) keys {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	return keys{
		pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}),
		pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}),
	}
}

// What cannot be decrypted arrives, is named, and can be acked. Who has the key reads it.
func TestEncryptedMessageArrives(t *testing.T) {
	b, pair, topic := open(t, pulsar.Config{}), newKeys(t), rand.Text()
	_, in := subscribe(t, b, "without", topic, 2)
	send(t, topic, pulsarclient.ProducerOptions{
		DisableBatching: true, Encryption: &pulsarclient.ProducerEncryptionInfo{KeyReader: pair, Keys: []string{"k"}},
	}, &pulsarclient.ProducerMessage{Payload: []byte("secret"), Key: "key"})
	m := next(t, in)
	if d := delivery(t, m); d.DecodeError == nil || len(m.Payload) == 0 || string(m.Payload) == "secret" || string(d.Key) != "key" {
		t.Errorf("without a key: %q, %+v; want what was encrypted, and an error", m.Payload, d)
	}
	m.Nack()
	next(t, in).Ack()
	quiet(t, in)
	with := open(t, pulsar.Config{Decryption: &pulsarclient.MessageDecryptionInfo{KeyReader: pair}})
	_, in = subscribe(t, with, "with", topic, 2)
	m = next(t, in)
	if d := delivery(t, m); d.DecodeError != nil || string(m.Payload) != "secret" {
		t.Errorf("with the key: %q, %v; want secret", m.Payload, d.DecodeError)
	}
	m.Ack()
}

// Another client's policy has moved a message to a dead-letter topic. Its metadata tell where it was.
func TestNativeDeadLetterTellsWhereItWas(t *testing.T) {
	client, topic := dial(t, testserver.Pulsar(t)), rand.Text()
	c, err := client.Subscribe(pulsarclient.ConsumerOptions{
		Topic: topic, SubscriptionName: "s", Type: pulsarclient.Shared, SubscriptionInitialPosition: pulsarclient.SubscriptionPositionEarliest,
		NackRedeliveryDelay: 10 * time.Millisecond, DLQ: &pulsarclient.DLQPolicy{
			MaxDeliveries: 1, DeadLetterTopic: topic + "-DLQ", ProducerOptions: pulsarclient.ProducerOptions{SendTimeout: -1},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	b := open(t, pulsar.Config{})
	publish(t, b, topic, numbered("key", 0, 1)...)
	m, err := c.Receive(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c.Nack(m)
	_, in := subscribe(t, b, "dead", topic+"-DLQ", 2)
	dead := next(t, in)
	if dead.UUID != "key-0" || string(dead.Payload) != "0" || dead.Metadata["ce_partitionkey"] != "key" ||
		!strings.HasSuffix(dead.Metadata["REAL_TOPIC"], "/"+topic) || dead.Metadata["ORIGIN_MESSAGE_ID"] == "" {
		t.Errorf("dead letter %q %q %v: want what it was, REAL_TOPIC and ORIGIN_MESSAGE_ID", dead.UUID, dead.Payload, dead.Metadata)
	}
	dead.Ack()
}
