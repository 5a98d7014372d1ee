package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/headrace-go/headrace/integration/chaos/proxy"
)

// do does one action, and returns when it has ended.
func (r *run) do(a action) error {
	switch a.Kind {
	case stopDatabase:
		return r.servers["postgres"].bounce(r.ctx, true, a.For)
	case jumpClock:
		return r.skew(a)
	default:
	}
	for _, p := range r.pipelines {
		if p.spec.Pipeline == a.Pipeline {
			return p.do(a)
		}
	}
	return fmt.Errorf("there is no pipeline %s", a.Pipeline)
}

func (p *pipeline) do(a action) error {
	r := p.r
	switch a.Kind {
	case killConsumer:
		p.consumer[a.Pick%len(p.consumer)].signal(syscall.SIGKILL)
	case killRelay:
		p.relays[a.Pick%len(p.relays)].signal(syscall.SIGKILL)
	case killProducer:
		p.producer.signal(syscall.SIGKILL)
	case freezeConsumer:
		p.freeze(p.consumer[a.Pick%len(p.consumer)], a.For)
	case freezeRelay:
		p.freeze(p.relays[a.Pick%len(p.relays)], a.For)
	case restartConsumer:
		return p.consumer[a.Pick%len(p.consumer)].restart()
	case restartRelay:
		return p.relays[a.Pick%len(p.relays)].restart()
	case killBroker:
		return p.servers[0].bounce(r.ctx, true, a.For)
	case stopBroker:
		return p.servers[0].bounce(r.ctx, false, a.For)
	case changeLeader:
		return p.servers[a.Pick%len(p.servers)].bounce(r.ctx, a.Cut, a.For)
	case cutBroker, slowBroker, holeBroker:
		p.network(p.broker[p.servers[a.Pick%len(p.servers)].name], a)
	case cutDatabase, slowDatabase, holeDatabase:
		p.network(p.database, a)
	case stormMembers:
		return p.storm(a)
	case poisonBurst:
		return p.spec.poison(r.ctx, p.store, a.Count, a.Pick)
	case outage:
		return p.away(a.For)
	default:
		return fmt.Errorf("%s is not for a pipeline", a.Kind)
	}
	return nil
}

func (p *pipeline) freeze(l *place, d time.Duration) {
	l.signal(syscall.SIGSTOP)
	pause(p.r.ctx, d)
	l.signal(syscall.SIGCONT)
}

// network troubles one way to a server.
func (p *pipeline) network(x *proxy.Proxy, a action) {
	switch a.Kind {
	case slowBroker, slowDatabase:
		x.Slow(a.Late)
		pause(p.r.ctx, a.For)
		x.Slow(0)
	case holeBroker, holeDatabase:
		x.Hole(true)
		pause(p.r.ctx, a.For)
		if a.Cut {
			x.Cut()
		}
		x.Hole(false)
	default:
		x.Cut()
	}
}

// storm makes members join and leave, one of them each second.
func (p *pipeline) storm(a action) (err error) {
	const join = 2 // of so many one stays, for a while
	var guests []*place
	defer func() {
		for _, l := range guests {
			l.leave()
		}
		for _, l := range guests {
			err = errors.Join(err, l.await(l.ended))
		}
	}()
	for i := 0; time.Duration(i)*time.Second < a.For && p.r.ctx.Err() == nil; i++ {
		if len(guests) > join || len(guests) > 0 && (a.Pick>>i)&1 == 1 {
			guests[0].leave()
			if err := guests[0].await(guests[0].ended); err != nil {
				return err
			}
			guests = guests[1:]
		} else {
			p.mu.Lock()
			p.storms++
			n := p.r.Consumers + p.storms
			p.mu.Unlock()
			l, err := p.open(consumer, n)
			if err != nil {
				return err
			}
			guests = append(guests, l)
		}
		pause(p.r.ctx, time.Second)
	}
	return nil
}

// away makes every attempt of the pipeline fail for a time, with an error that nothing is known of.
func (p *pipeline) away(d time.Duration) error {
	if err := os.WriteFile(p.spec.Outage, nil, 0o600); err != nil {
		return err
	}
	pause(p.r.ctx, d)
	return os.Remove(p.spec.Outage)
}

// skew makes the database's clock jump, and back after a time.
func (r *run) skew(a action) (err error) {
	set := func(by time.Duration) error {
		ctx := context.WithoutCancel(r.ctx)
		return pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error { return skewClock(ctx, tx.Conn(), by) })
	}
	if err := set(a.Skew); err != nil {
		return err
	}
	pause(r.ctx, a.For)
	return set(0)
}
