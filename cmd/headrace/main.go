// Command headrace is the operator's tool: dead letters, parked keys, the outbox, the inbox, replays, and a check of a
// service's configuration. See docs/runbook.md for what to do when an alarm rings.
//
// It finds the broker and the database by URL, from --broker and --database or the variables HEADRACE_BROKER and
// HEADRACE_DATABASE:
//
//	kafka://HOST:PORT,HOST:PORT   ?tls=true&sasl=scram-sha-512 with user:password@ before the hosts
//	nats://HOST:PORT              ?creds=FILE
//	embedded:DIR                  JetStream's directory of a service that is stopped
//	amqp://USER:PASSWORD@HOST     RabbitMQ
//	redis://HOST:PORT             Redis Streams
//	postgres://USER:PASSWORD@HOST/DATABASE
//
//	postgres://USER:PASSWORD@HOST/DATABASE
//	mysql://USER:PASSWORD@HOST:PORT/DATABASE
//	sqlite:FILE
//
// Letters that are stored encrypted need their keys: HEADRACE_DEADLETTER_KEYS=ID=BASE64,... and HEADRACE_DEADLETTER_BLIND=BASE64.
// What a service's own Redact and Subject functions do (deadletter.Protection), this command does not know: there let the service index.
//
// Without a database, "dlt ls", "groups", "show" and "redrive" work on the dead-letter topics themselves, where the broker can read one again:
// Kafka and JetStream. With the others, and for "replay", they need the database and a service that indexes (deadletter.Index). Programs redrive
// over any other broker with deadletter.NewRedriver.
//
// Exit codes are stable:
//
//	0  done
//	1  it failed: no connection, no permission, an error of the broker or the database
//	2  the command line makes no sense
//	3  nothing was found
//	4  done in part: some messages were not sent, or could not be changed
//	5  a canary stopped the redrive: redriven messages failed again, or were not handled in time
//	6  not confirmed: answer y, or give --yes
//	7  doctor found something that is wrong
//	130  interrupted; what was done is done, and the same command goes on
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Getenv, os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
