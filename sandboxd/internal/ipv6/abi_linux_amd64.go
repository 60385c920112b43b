package ipv6

const sysSeccomp = 317

// x32 calls have a bit set on top of the number of x86-64.
var abis = []abi{
	{audit: 0xC000003E, socket: 41, ignored: 0x40000000},
	{audit: 0x40000003, socket: 359, socketcall: 102},
}
