package config

import (
	"strings"
	"testing"
)

const good = `{"id":"sb-1","token_sha256":"` + "0000000000000000000000000000000000000000000000000000000000000000" + `","listen":{"fd":3},"_or":{"tcp":"x"},"unknown":1}`

func TestDefaultsAreFilledInAndUnknownFieldsIgnored(t *testing.T) {
	c, err := Parse([]byte(good))
	if err != nil || c.Workdir != "/" || c.Shell != "sh" || c.SpoolLimitBytes != 1<<30 || *c.Listen.FD != 3 || c.Cgroup != nil {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestABadDocumentIsRefusedByTheNameOfItsField(t *testing.T) {
	cases := map[string][2]string{
		"id":                {`"sb-1"`, `"../x"`},
		"token_sha256":      {`"0000`, `"zz00`},
		"listen":            {`{"fd":3}`, `{}`},
		"lease.ttl_s":       {`"unknown":1`, `"lease":{"ttl_s":0}`},
		"lease.heartbeat_s": {`"unknown":1`, `"lease":{"heartbeat_s":-1}`},
		"workdir":           {`"unknown":1`, `"workdir":"x"`},
		"spool_limit_bytes": {`"unknown":1`, `"spool_limit_bytes":1`},
		"cgroup.version":    {`"unknown":1`, `"cgroup":{"version":3}`},
		"JSON":              {`{"id"`, `{id`},
	}
	for field, change := range cases {
		if !strings.Contains(good, change[0]) {
			t.Fatalf("the case %s changes nothing", field)
		}
		_, err := Parse([]byte(strings.Replace(good, change[0], change[1], 1)))
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}
