package workloads

import (
	"os/exec"
	"strconv"
	"testing"
	"time"
)

func TestGroupOfAProcessIsFoundInBothVersions(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		groups, mounts, dir string
		isUnified           bool
	}{
		"version 1": {
			"4:memory:/a\n2:cpu,cpuacct:/system.slice\n0::/\n",
			"30 25 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n31 25 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n32 25 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
			"/sys/fs/cgroup/cpu,cpuacct/system.slice", false,
		},
		"version 2": {
			"0::/user.slice/run-1.scope\n",
			"29 22 0:25 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
			"/sys/fs/cgroup/user.slice/run-1.scope", true,
		},
		"neither": {"4:cpuset:/\n", "30 25 0:26 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, isUnified, err := groupOf(test.groups, test.mounts)
			if dir != test.dir || isUnified != test.isUnified || (err == nil) != (test.dir != "") {
				t.Errorf("got %q, %v, %v", dir, isUnified, err)
			}
		})
	}
}

func TestProcessesOfAGroupAreHeldToTheirShare(t *testing.T) {
	t.Parallel()
	group, err := newCPUGroup()
	if err != nil {
		t.Skipf("no control group can be made here: %v", err)
	}
	t.Cleanup(func() {
		if err := group.remove(); err != nil {
			t.Error(err)
		}
	})
	// A process with a child, both of which count as fast as they may.
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "while :; do :; done & while :; do :; done")
	cmd.SysProcAttr = serverAttributes()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop := func() {
		for _, child := range childrenOf(cmd.Process.Pid) {
			_ = exec.CommandContext(t.Context(), "kill", "-9", strconv.Itoa(child)).Run()
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	for len(childrenOf(cmd.Process.Pid)) == 0 {
		<-time.After(time.Millisecond)
	}
	if err := group.add(cmd.Process.Pid); err != nil {
		stop()
		t.Fatal(err)
	}
	used := func() time.Duration {
		stat, _ := processStat(strconv.Itoa(cmd.Process.Pid))
		return stat.cpu + childrenUsage(cmd.Process.Pid)
	}
	const share, enough = 0.1, 100
	if err := group.hold(share); err != nil {
		stop()
		t.Fatal(err)
	}
	before := used()
	periods, usedUp := group.throttled()
	for deadline := time.Now().Add(time.Minute); periods < enough && time.Now().Before(deadline); periods, usedUp = group.throttled() {
		<-time.After(10 * time.Millisecond)
	}
	took, most := used()-before, time.Duration(share*float64(periods)*float64(groupPeriod))
	stop()
	if periods < enough || usedUp < periods/2 || took > most*3/2 {
		t.Errorf("used %s in %d periods, want %s at most; the share was used up in %d", took, periods, most, usedUp)
	}
}
