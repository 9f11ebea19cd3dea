package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Program is a binary that is built from a Go module with pinned versions.
type Program struct {
	Name    string
	module  string // the directory of its module below the harness's sources
	pkg     string // the package to build, as an argument of `go build`
	ldflags string
	cost    string // printed before a build; measured with an empty build cache on two cores
}

const (
	kubeVersion  = "v1.36.3"
	helmVersion  = "v4.3.1"
	versionFlags = "-X k8s.io/component-base/version.git%[1]s=%[2]s -X k8s.io/client-go/pkg/version.git%[1]s=%[2]s "
)

var programs = []Program{
	{Name: "kube", module: "kube", pkg: ".", cost: "about 5 minutes and 150 MB",
		ldflags: fmt.Sprintf(versionFlags, "Version", kubeVersion) + fmt.Sprintf(versionFlags, "Major", "1") + fmt.Sprintf(versionFlags, "Minor", "36")},
	{Name: "helm", module: "helm", pkg: "helm.sh/helm/v4/cmd/helm", cost: "about 2 minutes and 70 MB",
		ldflags: "-X helm.sh/helm/v4/internal/version.version=" + helmVersion},
	{Name: "pause", module: ".", pkg: "./pause", cost: "seconds"},
	{Name: "kwok", module: "kwok", pkg: "sigs.k8s.io/kwok/cmd/kwok", cost: "about 2 minutes and 65 MB"},
}

// neededPrograms are built by `cluster up`. Others are built only if they are named.
var neededPrograms = []string{"kube", "helm", "pause"}

func programByName(name string) (Program, error) {
	i := slices.IndexFunc(programs, func(p Program) bool { return p.Name == name })
	if i < 0 {
		return Program{}, fmt.Errorf("no program %q; there are kube, helm, pause and kwok", name)
	}
	return programs[i], nil
}

// cacheDir returns the directory for files that outlive the clone and the cluster.
func cacheDir() (string, error) {
	base, err := os.UserCacheDir() // XDG_CACHE_HOME, or ~/.cache
	return filepath.Join(base, "dalsegno"), err
}

// binary returns the path of a program in the cache. The directory's name is a hash of
// the build's inputs, so every clone with the same inputs finds it.
func (c *Cluster) binary(p Program) (string, error) {
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	key, err := buildKey(filepath.Join(c.Src, p.module), p)
	return filepath.Join(cache, key, p.Name), err
}

// buildKey hashes go.mod, go.sum, the program's own sources, how it is built and the
// Go version.
func buildKey(dir string, p Program) (string, error) {
	hash := sha256.New()
	patterns := []string{"go.mod", "go.sum", "*.go"}
	if p.pkg == "./pause" {
		patterns = []string{"pause/*.go"}
	}
	for _, pattern := range patterns {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return "", err
		}
		for _, file := range files { // Glob sorts
			b, err := os.ReadFile(file)
			if err != nil {
				return "", err
			}
			fmt.Fprintf(hash, "%s %d\n", filepath.Base(file), len(b))
			hash.Write(b)
		}
	}
	cmd := exec.Command("go", "env", "GOVERSION", "GOARCH")
	cmd.Dir = dir
	goVersion, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("asking go for its version: %w", err)
	}
	fmt.Fprintf(hash, "%s %s %s", p.pkg, p.ldflags, goVersion)
	return hex.EncodeToString(hash.Sum(nil))[:16], nil
}

// build builds the program unless it is in the cache, and returns its path.
func (c *Cluster) build(p Program) (string, error) {
	out, err := c.binary(p)
	if err != nil || exists(out) {
		return out, err
	}
	fmt.Printf("building %s: %s with an empty build cache\n", p.Name, p.cost)
	start := time.Now()
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return "", err
	}
	tmp := fmt.Sprintf("%s.%d.tmp", out, os.Getpid())
	defer os.Remove(tmp)
	cmd := exec.Command("go", "build", "-mod=readonly", "-buildvcs=false", "-trimpath",
		"-ldflags=-s -w "+p.ldflags, "-o", tmp, p.pkg)
	cmd.Dir = filepath.Join(c.Src, p.module)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	var stderr strings.Builder
	cmd.Stdout, cmd.Stderr = io.Discard, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("building %s: %w\n%s", p.Name, err, stderr.String())
	}
	if err := os.Rename(tmp, out); err != nil {
		return "", err
	}
	fmt.Printf("built %s in %.0f s: %s\n", p.Name, time.Since(start).Seconds(), out)
	return out, nil
}

// buildAll is `cluster build`. The builds run one after the other, because each uses all
// cores.
func (c *Cluster) buildAll(names []string) error {
	if len(names) == 0 {
		names = neededPrograms
	}
	for _, name := range names {
		p, err := programByName(name)
		if err != nil {
			return err
		}
		binary, err := c.binary(p)
		if err != nil {
			return err
		}
		cached := exists(binary)
		path, err := c.build(p)
		if err != nil {
			return err
		}
		if cached {
			fmt.Printf("%s is in the cache: %s\n", name, path)
		}
	}
	return nil
}

// kubePrograms are the names under which the kube binary is called.
var kubePrograms = []string{"etcd", "coredns", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet"}

// installPrograms builds missing programs and links all of them into the state
// directory: those for people in bin/, the cluster's own in libexec/.
func (c *Cluster) installPrograms() error {
	paths := map[string]string{}
	for _, name := range neededPrograms {
		p, err := programByName(name)
		if err != nil {
			return err
		}
		if paths[name], err = c.build(p); err != nil {
			return err
		}
	}
	links := map[string]string{"bin/kubectl": paths["kube"], "bin/helm": paths["helm"], "libexec/pause": paths["pause"]}
	for _, name := range kubePrograms {
		links["libexec/"+name] = paths["kube"]
	}
	for link, target := range links {
		if err := replaceLink(target, c.path(link)); err != nil {
			return err
		}
	}
	return c.installSelf()
}

func replaceLink(target, link string) error {
	if current, err := os.Readlink(link); err == nil && current == target {
		return nil
	}
	tmp := link + ".tmp"
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	if err := os.Symlink(target, tmp); err != nil {
		return err
	}
	return os.Rename(tmp, link)
}

// installSelf copies this program to bin/cluster. The tests then need no `go run`, and
// the nodes' init processes do not depend on a temporary file.
func (c *Cluster) installSelf() error {
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	if current, err := os.ReadFile(c.path("bin/cluster")); err == nil && string(current) == string(self) {
		return nil
	}
	return writeFile(c.path("bin/cluster"), self, 0o755)
}
