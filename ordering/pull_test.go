package ordering_test

import "testing"

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
