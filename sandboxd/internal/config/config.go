// Package config reads the one JSON document that sandboxd is started with.
package config

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"orchard/sandboxd/internal/wire"
)

// documentLimit bounds the size of the configuration.
const documentLimit = 4 << 20

// Listen says where requests come in: an already listening descriptor, or a TCP address.
type Listen struct {
	FD  *int   `json:"fd"`
	TCP string `json:"tcp"`
}

// Lease holds the bounds of the sandbox's life, in seconds; nil means none.
type Lease struct {
	TTL       *float64 `json:"ttl_s"`
	MaxTTL    *float64 `json:"max_ttl_s"`
	Idle      *float64 `json:"idle_s"`
	Heartbeat *float64 `json:"heartbeat_s"`
}

// Cgroup names the open directories of the sandbox's `commands` cgroup by hierarchy.
type Cgroup struct {
	Version int            `json:"version"`
	FDs     map[string]int `json:"fds"`
}

// Seal keeps commands out until the network is seen to be shut. The sandbox ends Timeout
// seconds after a witness first asked without that, and if none asks, AskedWithin seconds
// (null: as many) after its start.
type Seal struct {
	Timeout     float64  `json:"timeout_s"`
	AskedWithin *float64 `json:"asked_within_s"`
}

// Silence is the number of seconds in which somebody must ask.
func (s *Seal) Silence() *float64 {
	if s.AskedWithin != nil {
		return s.AskedWithin
	}
	return &s.Timeout
}

// Config is the start-up document of the wire contract. Unknown fields are ignored.
type Config struct {
	ID              string            `json:"id"`
	TokenSHA256     string            `json:"token_sha256"`
	Listen          Listen            `json:"listen"`
	Env             map[string]string `json:"env"`
	User            string            `json:"user"`
	Workdir         string            `json:"workdir"`
	Lease           Lease             `json:"lease"`
	Cgroup          *Cgroup           `json:"cgroup"`
	Seal            *Seal             `json:"seal"`
	IPv6            string            `json:"ipv6"`
	StateFD         *int              `json:"state_fd"`
	StateDir        string            `json:"state_dir"`
	EnvFromProcess  bool              `json:"env_from_process"`
	PathAppend      []string          `json:"path_append"`
	DeathFile       string            `json:"death_file"`
	SpoolLimitBytes int64             `json:"spool_limit_bytes"`
	Entrypoint      []string          `json:"entrypoint"`
	Shell           string            `json:"shell"`
	OOMScoreAdj     int               `json:"commands_oom_score_adj"`
}

// Parse reads a document, fills in the defaults and checks it.
func Parse(document []byte) (*Config, error) {
	c := &Config{Workdir: "/", Shell: "sh", SpoolLimitBytes: 1 << 30}
	if err := json.Unmarshal(document, c); err != nil {
		return nil, fmt.Errorf("the configuration is not the due JSON document: %w", err)
	}
	return c, c.check()
}

func (c *Config) check() error {
	c.TokenSHA256 = strings.ToLower(c.TokenSHA256)
	if c.Workdir == "" {
		c.Workdir = "/"
	}
	if c.Shell == "" {
		c.Shell = "sh"
	}
	switch {
	case !wire.IsID(c.ID):
		return errors.New("id: 1-128 of [A-Za-z0-9._-] are due")
	case !isSHA256(c.TokenSHA256):
		return errors.New("token_sha256: 64 hexadecimal digits are due")
	case (c.Listen.FD == nil) == (c.Listen.TCP == ""):
		return errors.New("listen: either fd or tcp is due")
	case c.Workdir != "." && !strings.HasPrefix(c.Workdir, "/"):
		return errors.New("workdir: an absolute path is due, or \".\"")
	case c.SpoolLimitBytes < 128<<10:
		return errors.New("spool_limit_bytes: at least 131072 is due")
	case c.Cgroup != nil && c.Cgroup.Version != 1 && c.Cgroup.Version != 2:
		return errors.New("cgroup.version: 1 or 2 is due")
	case c.IPv6 != "" && c.IPv6 != "off" && c.IPv6 != "if_assigned":
		return errors.New("ipv6: off or if_assigned is due")
	case c.Seal != nil && (!(c.Seal.Timeout > 0) || c.Seal.Timeout > 1e9):
		return errors.New("seal.timeout_s: a number of seconds above 0 is due")
	case c.Seal != nil && c.Seal.AskedWithin != nil && (!(*c.Seal.AskedWithin > 0) || *c.Seal.AskedWithin > 1e9):
		return errors.New("seal.asked_within_s: a number of seconds above 0 or null is due")
	}
	for name, seconds := range map[string]*float64{"ttl_s": c.Lease.TTL, "max_ttl_s": c.Lease.MaxTTL,
		"idle_s": c.Lease.Idle, "heartbeat_s": c.Lease.Heartbeat} {
		if seconds != nil && (!(*seconds > 0) || *seconds > 1e9) {
			return fmt.Errorf("lease.%s: a number of seconds above 0 or null is due", name)
		}
	}
	return nil
}

func isSHA256(text string) bool {
	raw, err := hex.DecodeString(text)
	return err == nil && len(raw) == sha256.Size
}

// Load finds the document as the command line says: --config-fd N, --config PATH or
// --config-env NAME.
func Load(arguments []string) (*Config, error) {
	flags := flag.NewFlagSet("sandboxd", flag.ContinueOnError)
	fd := flags.Int("config-fd", -1, "descriptor that holds the configuration")
	path := flags.String("config", "", "file that holds the configuration")
	env := flags.String("config-env", "", "environment variable that holds the configuration")
	if err := flags.Parse(arguments); err != nil {
		return nil, err
	}
	document, err := read(*fd, *path, *env)
	if err != nil {
		return nil, err
	}
	return Parse(document)
}

func read(fd int, path, env string) ([]byte, error) {
	switch {
	case fd >= 0:
		f := os.NewFile(uintptr(fd), "configuration")
		if f == nil {
			return nil, fmt.Errorf("--config-fd %d is not open", fd)
		}
		defer f.Close()
		return readAll(f)
	case path != "":
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return readAll(f)
	case env != "":
		document, ok := os.LookupEnv(env)
		if !ok {
			return nil, fmt.Errorf("--config-env: %s is not set", env)
		}
		return []byte(document), os.Unsetenv(env)
	}
	return nil, errors.New("one of --config-fd, --config, --config-env is due")
}

func readAll(f io.Reader) ([]byte, error) {
	document, err := io.ReadAll(io.LimitReader(f, documentLimit+1))
	if len(document) > documentLimit {
		return nil, fmt.Errorf("the configuration is larger than %d bytes", documentLimit)
	}
	return document, err
}
