package main

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// packages maps a required program to its Debian package.
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

// daemonEnv is the environment of the cluster's programs. They do not inherit the
// caller's variables, for example a proxy or etcd's.
var daemonEnv = []string{"PATH=" + os.Getenv("PATH") + adminPath, "HOME=/root"}

// adminPath has the directories of programs for root, which may be missing in PATH.
const adminPath = ":/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"

// useAdminPath adds adminPath to this program's PATH.
func useAdminPath() error { return os.Setenv("PATH", os.Getenv("PATH")+adminPath) }

// ensurePackages installs the Debian packages of missing programs.
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
		// The package lists may be outdated or missing.
		return sequence(
			func() error { return aptGet("update") },
			func() error { return aptGet(missing...) },
		)
	})
}

func aptGet(args ...string) error {
	cmd := exec.Command("apt-get", args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	return runCmd(cmd)
}
