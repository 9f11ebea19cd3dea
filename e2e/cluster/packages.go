package main

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// packages maps a program that must be there to the Debian package that brings it.
var packages = map[string]string{
	"containerd":       "containerd",
	"runc":             "runc",
	"/usr/lib/cni/ptp": "containernetworking-plugins",
	"iptables":         "iptables",
	"conntrack":        "conntrack",
	"nft":              "nftables",
	"docker-registry":  "docker-registry",
	"ip":               "iproute2",
}

// daemonEnv is the whole environment of the cluster's programs. Whatever else is set
// in the caller's shell (a proxy, etcd's or a node's own variables) is not for them.
var daemonEnv = []string{"PATH=" + os.Getenv("PATH") + adminPath, "HOME=/root"}

// adminPath is where programs for root are, which not every root's PATH has.
const adminPath = ":/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"

// useAdminPath makes this program find them too.
func useAdminPath() error { return os.Setenv("PATH", os.Getenv("PATH")+adminPath) }

// ensurePackages installs what is missing of the machine's own programs.
func ensurePackages() error {
	missing := []string{"install", "--yes", "--no-install-recommends"}
	for program, name := range packages {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, name)
		}
	}
	if len(missing) == 3 {
		return nil
	}
	slices.Sort(missing[3:])
	return step(fmt.Sprintf("install %s", strings.Join(missing[3:], " ")), func() error {
		if aptGet(missing...) == nil {
			return nil
		}
		// The package lists may be old or not there at all.
		return steps(
			func() error { return aptGet("update") },
			func() error { return aptGet(missing...) },
		)
	})
}

func aptGet(args ...string) error {
	cmd := exec.Command("apt-get", args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	return finish(cmd)
}
