package push

import (
	"fmt"

	"github.com/queued/queued/internal/seal"
)

// CheckCopy makes sure that the sealed header fields (nil: none) and secrets of the push of a queue, which come from another cell, can be opened here. It fails with
// ErrNoSealer or ErrSealed.
func (s *Service) CheckCopy(queue string, headers []byte, secrets [][]byte) error {
	if s.cfg.Sealer == nil {
		return ErrNoSealer
	}
	if headers != nil {
		if _, err := s.cfg.Sealer.Open(headers, seal.PushHeaders.Owner(queue)); err != nil {
			return fmt.Errorf("opening the header fields: %w", err)
		}
	}
	for _, sealed := range secrets {
		if _, err := s.cfg.Sealer.Open(sealed, seal.PushSecret.Owner(queue)); err != nil {
			return fmt.Errorf("opening a secret: %w", err)
		}
	}
	return nil
}
