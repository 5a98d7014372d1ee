package ledger

import "sync"

// suspects are the messages that this process knows to be suspects. Whether they are is the store's to say.
type suspects struct {
	mu   sync.RWMutex
	keys map[Key]struct{}
}

func (s *suspects) has(k Key) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	_, ok := s.keys[k]
	return ok
}

// add remembers k. Beyond the bound it does not: the store still knows.
func (s *suspects) add(k Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.keys) < maxSuspects {
		s.keys[k] = struct{}{}
	}
}

func (s *suspects) remove(k Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.keys, k)
}

// replace forgets those that are not in list.
func (s *suspects) replace(list []Key) {
	keys := make(map[Key]struct{}, len(list))
	for _, k := range list {
		keys[k] = struct{}{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys = keys
}

func (s *suspects) len() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.keys)
}
