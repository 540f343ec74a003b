package workloads

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// groupPeriod is the time of which a group may use a share. Shorter than the kernel's default of 100 ms: whoever has used up its share waits for the next period, and
// a commit should not wait for that long.
const groupPeriod = 20 * time.Millisecond

// cpuGroup is a control group, which holds processes to a share of the processors together.
type cpuGroup struct {
	dir       string
	isUnified bool // of version 2
}

// newCPUGroup makes a group below that of this process, without a limit.
func newCPUGroup() (*cpuGroup, error) {
	parent, isUnified, err := ownGroup()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(parent, "queued-bench-")
	if err == nil && isUnified {
		if err = os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), []byte("+cpu"), 0); err != nil {
			err = errors.Join(err, os.Remove(dir))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL cannot be held to a share of the processors, as no control group can be made for it "+
			"(be root, or have systemd-run --user --scope --property=Delegate=yes run this; --share 0 leaves it out): %w", err)
	}
	return &cpuGroup{dir, isUnified}, nil
}

// ownGroup returns the folder of the group that this process is in, of the controller of processors.
func ownGroup() (dir string, isUnified bool, err error) {
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", false, err
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", false, err
	}
	return groupOf(string(groups), string(mounts))
}

// groupOf is ownGroup for the text of /proc/self/cgroup and /proc/self/mountinfo.
func groupOf(groups, mounts string) (dir string, isUnified bool, err error) {
	var old, unified string // the paths in the hierarchies
	for line := range strings.Lines(groups) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(fields) < 3:
		case fields[0] == "0":
			unified = fields[2]
		case hasWord(fields[1], "cpu"):
			old = fields[2]
		}
	}
	for line := range strings.Lines(mounts) {
		before, after, _ := strings.Cut(line, " - ")
		place, kind := strings.Fields(before), strings.Fields(after)
		switch {
		case len(place) < 5 || len(kind) < 3:
		case old != "" && kind[0] == "cgroup" && hasWord(kind[2], "cpu"):
			return filepath.Join(place[4], old), false, nil
		case old == "" && unified != "" && kind[0] == "cgroup2":
			return filepath.Join(place[4], unified), true, nil
		}
	}
	return "", false, errors.New("no control group of processors is mounted")
}

// hasWord reports whether a list with commas has a word.
func hasWord(list, word string) bool { return slices.Contains(strings.Split(list, ","), word) }

// hold holds the group to so many processors; 0: to none.
func (g *cpuGroup) hold(cores float64) error {
	period := groupPeriod.Microseconds()
	quota := int64(cores * float64(period))
	if g.isUnified {
		limit := "max"
		if cores > 0 {
			limit = strconv.FormatInt(quota, 10)
		}
		return g.write("cpu.max", fmt.Sprintf("%s %d", limit, period))
	}
	if cores <= 0 {
		quota = -1
	}
	return errors.Join(g.write("cpu.cfs_period_us", strconv.FormatInt(period, 10)), g.write("cpu.cfs_quota_us", strconv.FormatInt(quota, 10)))
}

// add has a process, with the children that it has and will have, belong to the group.
func (g *cpuGroup) add(pid int) error {
	for {
		inside, err := os.ReadFile(filepath.Join(g.dir, "cgroup.procs"))
		if err != nil {
			return err
		}
		members, hasMoved := strings.Fields(string(inside)), false
		for _, one := range append([]int{pid}, childrenOf(pid)...) {
			text := strconv.Itoa(one)
			if slices.Contains(members, text) {
				continue
			}
			hasMoved = true
			if err := g.write("cgroup.procs", text); err != nil && one == pid { // a child may have ended
				return err
			}
		}
		if !hasMoved {
			return nil
		}
	}
}

// throttled returns how many periods there were in which the group had work, and in how many of them it has used up its share.
func (g *cpuGroup) throttled() (periods, waited int64) {
	text, _ := os.ReadFile(filepath.Join(g.dir, "cpu.stat"))
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, _ := strconv.ParseInt(value, 10, 64)
		switch name {
		case "nr_periods":
			periods = n
		case "nr_throttled":
			waited = n
		}
	}
	return periods, waited
}

// remove removes the group once its processes have ended.
func (g *cpuGroup) remove() (err error) {
	const tries, pause = 100, 20 * time.Millisecond
	for range tries {
		if err = os.Remove(g.dir); err == nil || errors.Is(err, os.ErrNotExist) {
			return nil
		}
		<-time.After(pause)
	}
	return err
}

func (g *cpuGroup) write(name, text string) error {
	return os.WriteFile(filepath.Join(g.dir, name), []byte(text), 0)
}

// childrenOf returns the children of a process.
func childrenOf(pid int) (children []int) {
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		child, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if stat, ok := processStat(entry.Name()); ok && stat.parent == int64(pid) {
			children = append(children, child)
		}
	}
	return children
}
