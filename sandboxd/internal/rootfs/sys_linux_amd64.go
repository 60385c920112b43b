package rootfs

import "syscall"

const sysFstatat = syscall.SYS_NEWFSTATAT
