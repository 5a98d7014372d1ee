package brokers

// Lagger is what a [Broker] also is if it knows how far its consumers are behind.
type Lagger interface {
	// Lag returns how many messages of topic consumer has not settled, in this process's part of the
	// topic: the sum over all processes is the consumer's lag. It returns false while that is not known. It does
	// not block and is safe for concurrent use.
	Lag(consumer, topic string) (messages int64, known bool)
}
