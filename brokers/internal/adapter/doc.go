// Package adapter is what broker adapters have in common and no user sees: the life of their subscribers, subscriptions and publishers,
// and the deliveries that are held until the runtime, or a user's own router, has settled them. It knows no broker.
package adapter
