package push

import (
	"crypto/sha256"
	"encoding/binary"
)

// ownerOf returns the process that pushes a queue, out of those that live, by rendezvous hashing: each comes to the same, and when a process joins or leaves,
// only its queues change hands. It returns "" when there is none.
func ownerOf(queue string, processes []string) (owner string) {
	var highest uint64
	for _, p := range processes {
		sum := sha256.Sum256([]byte(p + "\x00" + queue))
		if weight := binary.BigEndian.Uint64(sum[:8]); owner == "" || weight > highest || weight == highest && p > owner {
			owner, highest = p, weight
		}
	}
	return owner
}
