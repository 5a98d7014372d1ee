package main

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// kind is one kind of trouble.
type kind string

const (
	killConsumer    kind = "kill-consumer"
	killRelay       kind = "kill-relay"
	killProducer    kind = "kill-producer"
	killBroker      kind = "kill-broker"
	stopBroker      kind = "stop-broker"
	changeLeader    kind = "change-leader" // one of three nodes is killed or stopped
	freezeConsumer  kind = "freeze-consumer"
	freezeRelay     kind = "freeze-relay"
	restartConsumer kind = "restart-consumer"
	restartRelay    kind = "restart-relay"
	stormMembers    kind = "storm-members"
	cutBroker       kind = "cut-broker"
	slowBroker      kind = "slow-broker"
	holeBroker      kind = "hole-broker"
	cutDatabase     kind = "cut-database"
	slowDatabase    kind = "slow-database"
	holeDatabase    kind = "hole-database"
	poisonBurst     kind = "poison-burst"
	outage          kind = "outage-dependency"
	stopDatabase    kind = "stop-database"
	jumpClock       kind = "jump-clock"
)

// trouble says what a kind needs.
type trouble struct {
	kind kind
	// least and most bound how long it lasts.
	least, most time.Duration
	// after is how long it takes beyond that, about: a server starts, a process drains.
	after time.Duration
	// where it can happen.
	where func(pipelineKind string) bool
}

// shared is the lane of what all pipelines have in common.
const shared = "all"

func anyPipeline(broker string) bool { return broker != shared }
func ofAll(broker string) bool       { return broker == shared }

// ownServer: the pipeline's broker is a server of its own, of one node.
func ownServer(broker string) bool { return serverOf(broker) != "" && broker != kafkaCluster }

// frozen is longer than every lease and session of the system, see lease.
const frozen = lease + lease/2

var troubles = []trouble{
	{killConsumer, 0, 0, time.Second, anyPipeline},
	{killRelay, 0, 0, time.Second, anyPipeline},
	{killProducer, 0, 0, time.Second, anyPipeline},
	{killBroker, 0, 2 * time.Second, 8 * time.Second, ownServer},
	{stopBroker, 0, 2 * time.Second, 8 * time.Second, ownServer},
	{changeLeader, 2 * time.Second, 6 * time.Second, 10 * time.Second, func(broker string) bool { return broker == kafkaCluster }},
	{freezeConsumer, frozen, 3 * lease, time.Second, anyPipeline},
	{freezeRelay, frozen, 3 * lease, time.Second, anyPipeline},
	{restartConsumer, 0, 0, 2 * time.Second, anyPipeline},
	{restartRelay, 0, 0, 2 * time.Second, anyPipeline},
	{stormMembers, 10 * time.Second, 10 * time.Second, 2 * time.Second, func(broker string) bool { return broker != shared && !one(broker) }},
	{cutBroker, 0, 0, time.Second, ownServer},
	{slowBroker, 2 * time.Second, 5 * time.Second, 0, ownServer},
	{holeBroker, time.Second, 2 * lease, time.Second, ownServer},
	{cutDatabase, 0, 0, time.Second, anyPipeline},
	{slowDatabase, 2 * time.Second, 5 * time.Second, 0, anyPipeline},
	{holeDatabase, time.Second, 2 * lease, time.Second, anyPipeline},
	{poisonBurst, 0, 0, time.Second, anyPipeline},
	{outage, 3 * time.Second, 6 * time.Second, time.Second, anyPipeline},
	{stopDatabase, 0, 3 * time.Second, 2 * time.Second, ofAll},
	{jumpClock, 2 * time.Second, 8 * time.Second, time.Second, ofAll},
}

// action is one trouble that is planned. Which of its numbers mean something depends on its kind.
type action struct {
	At       time.Duration // since the beginning
	Pipeline string        // or shared
	Kind     kind
	For      time.Duration
	Pick     int           // which process or node
	Count    int           // of events
	Skew     time.Duration // of the clock
	Late     time.Duration // of bytes
	Cut      bool          // connections are cut at the end; a server is killed
}

func (a action) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-9s %s", a.Pipeline, a.Kind)
	if a.For > 0 {
		fmt.Fprintf(&b, " for %v", a.For)
	}
	switch a.Kind {
	case poisonBurst:
		fmt.Fprintf(&b, ", %d events", a.Count)
	case jumpClock:
		fmt.Fprintf(&b, " by %v", a.Skew)
	case slowBroker, slowDatabase:
		fmt.Fprintf(&b, " by %v", a.Late)
	case holeBroker, holeDatabase:
		if a.Cut {
			b.WriteString(", then cut")
		}
	case changeLeader:
		if a.Cut {
			b.WriteString(", by a kill")
		}
	default:
	}
	return b.String()
}

const (
	warmUp  = 4 * time.Second // before the first action
	leastOf = 2 * time.Second // the time to recover between two actions of a lane
	mostOf  = 5 * time.Second
	sharing = 3 // the shared lane's pauses are so many times longer, since it troubles everyone
)

// plan draws the actions of a run, in the order of their times. Each pipeline has a lane of its own, and so has what is shared:
// a lane's actions follow one another, and each kind comes once before one comes twice. pipelines are their brokers by name. It
// is pure.
func plan(seed uint64, duration time.Duration, pipelines map[string]string, wanted func(kind) bool) []action {
	lanes := map[string]string{shared: shared}
	for name, broker := range pipelines {
		lanes[name] = broker
	}
	var all []action
	for name, broker := range lanes {
		all = append(all, lanePlan(seed, duration, name, broker, wanted)...)
	}
	slices.SortFunc(all, func(a, b action) int { return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.Pipeline, b.Pipeline)) })
	return all
}

func lanePlan(seed uint64, duration time.Duration, name, broker string, wanted func(kind) bool) (lane []action) {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name)) // it never fails
	rnd := rand.New(rand.NewPCG(seed, h.Sum64()))
	var kinds []trouble
	for _, t := range troubles {
		if t.where(broker) && wanted(t.kind) {
			kinds = append(kinds, t)
		}
	}
	if len(kinds) == 0 {
		return nil
	}
	pause := func() time.Duration {
		p := between(rnd, leastOf, mostOf)
		if broker == shared {
			p *= sharing
		}
		return p
	}
	at := warmUp + between(rnd, 0, leastOf)
	for {
		rnd.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
		for _, t := range kinds {
			a := draw(rnd, t)
			a.At, a.Pipeline = at, name
			at += a.For + t.after
			if at > duration {
				return lane
			}
			lane = append(lane, a)
			at += pause()
		}
	}
}

// draw chooses how a trouble goes. It draws all numbers, needed or not.
func draw(rnd *rand.Rand, t trouble) action {
	a := action{
		Kind: t.kind, For: between(rnd, t.least, t.most), Pick: rnd.IntN(1 << 16), Count: 3 + rnd.IntN(18),
		Skew: between(rnd, lease, 20*time.Second), Late: between(rnd, 20*time.Millisecond, 400*time.Millisecond), Cut: rnd.IntN(2) == 0,
	}
	if rnd.IntN(2) == 0 {
		a.Skew = -a.Skew
	}
	return a
}

// between draws a duration, in milliseconds.
func between(rnd *rand.Rand, least, most time.Duration) time.Duration {
	if most <= least {
		return least
	}
	return (least + time.Duration(rnd.Int64N(int64(most-least)))).Round(time.Millisecond)
}

// kindsWanted reads a list of kinds, or of what they begin with: "kill,freeze-relay".
func kindsWanted(list string) (func(kind) bool, error) {
	if list == "" {
		return func(kind) bool { return true }, nil
	}
	wanted := map[kind]bool{}
	for word := range strings.SplitSeq(list, ",") {
		found := false
		for _, t := range troubles {
			if string(t.kind) == word || strings.HasPrefix(string(t.kind), word+"-") {
				wanted[t.kind], found = true, true
			}
		}
		if !found {
			return nil, fmt.Errorf("-actions has %q: there is no such action", word)
		}
	}
	return func(k kind) bool { return wanted[k] }, nil
}
