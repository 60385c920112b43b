package ipv6

import (
	"syscall"
	"testing"
)

// judge runs the program as the kernel would on a call.
func judge(t *testing.T, audit, call, argument uint32) uint32 {
	t.Helper()
	words := map[uint32]uint32{offsetCall: call, offsetABI: audit, offsetArgument: argument}
	filter, register := program(), uint32(0)
	for at := 0; at < len(filter); at++ {
		switch step := filter[at]; step.Code {
		case loadWord:
			register = words[step.K]
		case maskWord:
			register &= step.K
		case answer:
			return step.K
		case jumpIfEqual:
			if register == step.K {
				at += int(step.Jt)
			} else {
				at += int(step.Jf)
			}
		default:
			t.Fatalf("code %x", step.Code)
		}
	}
	t.Fatal("the program has no end")
	return 0
}

func TestEachABIIsRefusedTheFamilyAndNothingElse(t *testing.T) {
	const refused = failWith | uint32(syscall.EAFNOSUPPORT)
	for _, abi := range abis {
		for _, call := range []uint32{abi.socket, abi.socket | abi.ignored} {
			if got := judge(t, abi.audit, call, syscall.AF_INET6); got != refused {
				t.Errorf("%x %x: %x", abi.audit, call, got)
			}
			if got := judge(t, abi.audit, call, syscall.AF_INET); got != allow {
				t.Errorf("%x %x of IPv4: %x", abi.audit, call, got)
			}
		}
		if abi.socketcall != 0 {
			if got := judge(t, abi.audit, abi.socketcall, 1); got != refused {
				t.Errorf("socketcall: %x", got)
			}
			if got := judge(t, abi.audit, abi.socketcall, 3); got != allow {
				t.Errorf("socketcall of connect: %x", got)
			}
		}
		if got := judge(t, abi.audit, ioUringSetup, 0); got != failWith|uint32(syscall.EPERM) {
			t.Errorf("io_uring_setup: %x", got)
		}
		if got := judge(t, abi.audit, 9, syscall.AF_INET6); got != allow {
			t.Errorf("another call: %x", got)
		}
	}
	if got := judge(t, 1, 0, 0); got == allow {
		t.Error("an unknown ABI is allowed")
	}
}
