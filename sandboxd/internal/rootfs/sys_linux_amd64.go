package rootfs

import "syscall"

const (
	sysFstatat   = syscall.SYS_NEWFSTATAT
	sysRenameat2 = 316
)
