package sqs

// QueueNameForTest is the default name of a queue.
var QueueNameForTest = queueName
