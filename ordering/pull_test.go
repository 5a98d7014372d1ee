package ordering_test

import (
	"sync"
	"testing"
	"testing/synctest"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/ordering"
)

// An adapter that is pulled from must see the intake do what one with a channel sees: whoever takes the messages, their order, the window, a
// pause, a drain and what is given back are the same.
func TestPulled(t *testing.T) {
	pulling = true
	defer func() { pulling = false }()
	for name, test := range map[string]func(*testing.T){
		"hostile schedule":                   TestHostileSchedule,
		"K3":                                 TestK3NewDeliveryWaitsForTheOldFlight,
		"L1 with a partition":                TestL1KeylessShareTheLaneOfTheirPartition,
		"L1 without":                         TestL1KeylessWithoutPartitionRunAtOnce,
		"L2":                                 TestL2TopicsThatShareKeysDoNotShareLanes,
		"R4":                                 TestR4HeldDeliveriesAreBounded,
		"R8":                                 TestR8HandlerThatIgnoresItsTimeoutKeepsItsLane,
		"concurrency":                        TestConcurrencyBoundsHandlersAndReadinessIsFair,
		"pause":                              TestPauseHoldsUntilTheLastReasonIsGone,
		"settlement":                         TestSettlementInTheMiddleware,
		"panic":                              TestPanicGoesOnThroughTheMiddleware,
		"I1":                                 TestI1ViewCannotSettle,
		"I3":                                 TestI3EqualKeysNeverOverlapAndKeepTheirOrder,
		"I5":                                 TestI5DeliveryTakenAwayWhileItWaitedDoesNotRun,
		"taken away":                         TestDeliveriesTakenAwayGiveTheirWindowBack,
		"allow and another reason":           TestAllowGivesWayToAnyOtherReason,
		"allow past held lanes":              TestAllowReadsPastLanesThatAreHeld,
		"the rest of the lane":               TestI3WhatIsGivenBackTakesTheRestOfItsLaneAlong,
		"rest":                               TestRestingDeliveryKeepsItsLaneAndNoPlace,
		"drain gives back":                   TestDrainGivesBackWhatWaits,
		"drain recalls":                      TestDrainRecallsWhatTheRouterHasNotTaken,
		"drain while paused":                 TestDrainWhilePaused,
		"drain of an idle intake":            TestDrainOfAnIdleIntake,
		"S4":                                 TestS4DrainLimitIsAnErrorAndCancelsTheWork,
		"S5":                                 TestS5StopDoesNotMakeTheBrokerResend,
		"the context of Subscribe":           TestSubscribeContextStartsADrain,
		"close during a drain":               TestCloseDuringDrainLeavesTheLimitToIt,
		"successors of several topics":       TestSuccessorIsOfTheSameSubscription,
		"a failure among successors":         TestSuccessionEndsWithAFailure,
		"values and state of successors":     TestSuccessorHasTheRoutersValuesAndItsOwnState,
		"release without the intake's mutex": TestReleaseIsCalledWithoutTheIntakesLock,
	} {
		t.Run(name, test)
	}
}

// An ack makes room in the adapter for a message, of which it tells nobody, since whoever acks takes the next one. But the intake was paused
// meanwhile: it must ask when the pause is over, or the message waits for the next one to come.
func TestPulledMessageIsTakenAfterAPause(t *testing.T) {
	pulling = true
	defer func() { pulling = false }()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, ordering.Config{Window: 4})
		second := &sent{topic: "orders", key: "k", id: "2", partition: -1, msg: message.NewMessage("2", nil)}
		r.onSettled = sync.OnceFunc(func() { r.queue("orders") <- second })
		r.push("orders", "k", "1")
		r.subscribe("orders")
		r.wantEvents("+1")
		r.intake.Pause("test")
		r.finish(nil, "1")
		r.wantEvents("-1")
		r.intake.Resume("test")
		r.wantEvents("+2")
		r.finish(nil, "2")
		wantSettled(t, "acked", second)
		r.close()
	})
}
