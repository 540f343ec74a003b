//go:build unix

package workloads

import (
	"fmt"
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// asOrdinaryUser has a process that is about to be started run as an ordinary user, to whom the folders are given: PostgreSQL refuses to run as root. Where this process
// is no root it changes nothing.
func asOrdinaryUser(attributes *syscall.SysProcAttr, folders ...string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		found, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.ParseUint(found.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(found.Gid, 10, 32)
		if uidErr != nil || gidErr != nil {
			continue
		}
		attributes.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		for _, folder := range folders {
			if err := os.Lchown(folder, int(uid), int(gid)); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("PostgreSQL does not run as root, and there is neither a user postgres nor nobody")
}
