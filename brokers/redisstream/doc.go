// Package redisstream is the adapter for Redis Streams: a topic is a stream, a consumer is a consumer group, a
// subscriber is one member of it. It holds many entries un-acked, acks and nacks out of order, and takes over what
// dead members left behind, never what a living one is busy with.
//
// Redis has no owner of a delivery that ends with a connection. So each member keeps a key with a time to live;
// while it is there the member lives, whatever the age of what it holds. When it is gone, the others claim what the
// member had. A member that was stopped for longer finds out, and the contexts of its handlers end.
//
// # Order
//
// A member gets the stream in order. What others have given back, or a dead member has left, comes when it looks for that, at its
// start and every [Config.ClaimInterval]: in order, and before what is new by then, but behind newer entries that were read
// meanwhile. Two members of one group share the stream entry by entry: there is no order between them, and
// none between what a killed process had and what its successor reads before it was found dead. Give the only
// member of a group a stable [Config.Member]: its successor has its entries at once, and order holds through
// crashes.
//
// # Keeping and trimming
//
// What a publish confirmed is as safe as the server's settings make it: appendonly and appendfsync, replicas. The
// adapter trims streams if [Config.Retention] says so, and never an entry that some group has not read or not
// acked.
//
// # Wire format
//
// A message is one entry. The field "payload" holds the payload, none if it is nil; "_watermill_message_uuid" the
// id; every other field is one metadata key, with "h:" before it if it would be one of these two or begins with
// "h:". So an entry by any program can be read: what is not ours is metadata. Values are bytes and arrive as they
// were sent.
package redisstream
