//go:build !linux

package workloads

// cpuGroup holds processes to a share of the processors, which only Linux does.
type cpuGroup struct{}

func newCPUGroup() (*cpuGroup, error) {
	return nil, Invalidf("--share: only Linux can hold PostgreSQL to a share of the processors; --share 0 leaves it out")
}

func (*cpuGroup) hold(float64) error                 { return nil }
func (*cpuGroup) add(int) error                      { return nil }
func (*cpuGroup) throttled() (periods, waited int64) { return 0, 0 }
func (*cpuGroup) remove() error                      { return nil }
