package ipv6

const sysSeccomp = 277

var abis = []abi{
	{audit: 0xC00000B7, socket: 198},
	{audit: 0x40000028, socket: 281},
}
