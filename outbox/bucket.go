package outbox

// BucketOf returns the bucket of a key: its FNV-1a 64 hash modulo [Buckets]. It is frozen.
//
// The hash is that of the Internet-Draft draft-eastlake-fnv.
func BucketOf(key string) int {
	const (
		offset = 14695981039346656037
		prime  = 1099511628211
	)
	h := uint64(offset)
	for i := range len(key) {
		h ^= uint64(key[i])
		h *= prime
	}
	return int(h % Buckets)
}
