package bench

import (
	"testing"

	"github.com/queued/queued/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }
