package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// The cluster's addresses. They are fixed, so only one cluster runs on a machine;
// see [claimBridge] for how two state directories are kept apart.
const (
	bridgeName  = "dalsegno0"
	bridgeMAC   = "02:4b:43:00:00:01"
	bridgeIP    = "172.30.0.1"
	bridgeNet   = "172.30.0.0/24"
	podNetwork  = "10.44.0.0/16"
	serviceNet  = "10.45.0.0/16"
	apiServerIP = "10.45.0.1" // the first address of serviceNet: Service default/kubernetes
	maxNodes    = 9           // node I has 172.30.0.(10+I), pods 10.44.I.0/24
)

// Cluster is one cluster on this machine: everything about it lies under Dir, and
// what runs is found again from the records in Dir/run.
type Cluster struct {
	Dir string // state, absolute
	Src string // this program's own sources: kube/, helm/, kwok/ and pause/ lie beside them
}

// openCluster finds the state directory and the sources, and creates nothing.
func openCluster() (*Cluster, error) {
	dir, err := filepath.Abs(cmp.Or(os.Getenv("DALSEGNO_CLUSTER_DIR"), "/var/tmp/dalsegno-cluster"))
	if err != nil {
		return nil, err
	}
	src, err := sources()
	return &Cluster{Dir: dir, Src: src}, err
}

// sources is the directory of this file: where it was compiled, or, for a binary
// built with -trimpath, the clone around the working directory.
func sources() (string, error) {
	_, file, _, _ := runtime.Caller(0)
	if isSources(filepath.Dir(file)) {
		return filepath.Dir(file), nil
	}
	dir, err := os.Getwd()
	for err == nil && dir != "/" {
		for _, candidate := range []string{dir, filepath.Join(dir, "e2e/cluster")} {
			if isSources(candidate) {
				return candidate, nil
			}
		}
		dir = filepath.Dir(dir)
	}
	return "", fmt.Errorf("cannot find the sources of the cluster programs: run this inside a clone")
}

func isSources(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "kube/go.mod"))
	return err == nil && filepath.IsAbs(dir)
}

func (c *Cluster) path(elem ...string) string {
	return filepath.Join(append([]string{c.Dir}, elem...)...)
}

func (c *Cluster) kubeconfig() string { return c.path("kubeconfig") }
func (c *Cluster) auditLog() string   { return c.path("audit.log") }

// program is the path of one of the kube binary's programs.
func (c *Cluster) program(name string) string { return c.path("libexec", name) }

// environment is what a shell needs to talk to the cluster, one export per line.
func (c *Cluster) environment() string {
	var b strings.Builder
	// Both spellings are in use. Whoever uses a proxy reaches the cluster without it.
	direct := strings.Join([]string{bridgeNet, podNetwork, serviceNet}, ",")
	for _, v := range [][2]string{
		{"NO_PROXY", "${NO_PROXY:+$NO_PROXY,}" + direct},
		{"no_proxy", "${no_proxy:+$no_proxy,}" + direct},
		{"KUBECONFIG", c.kubeconfig()},
		{"PATH", c.path("bin") + ":$PATH"},
		{"DALSEGNO_CLUSTER_DIR", c.Dir},
		{"DALSEGNO_AUDIT_LOG", c.auditLog()},
		// Helm's own directories, so that a person's repositories and plugins stay out of it.
		{"HELM_CACHE_HOME", c.path("helm/cache")},
		{"HELM_CONFIG_HOME", c.path("helm/config")},
		{"HELM_DATA_HOME", c.path("helm/data")},
	} {
		fmt.Fprintf(&b, "export %s=%s\n", v[0], v[1])
	}
	return b.String()
}

// Node is one machine of the cluster: a process tree in its own mount, network and
// pid namespaces, with its own containerd.
type Node struct {
	Name  string // n1, n2, …
	Index int    // 1-based
	Dir   string
}

func (c *Cluster) node(i int) Node {
	name := "n" + strconv.Itoa(i)
	return Node{Name: name, Index: i, Dir: c.path("nodes", name)}
}

// nodeNamed is the existing node called nI.
func (c *Cluster) nodeNamed(name string) (Node, error) {
	i, err := strconv.Atoi(strings.TrimPrefix(name, "n"))
	if err != nil || i < 1 || i > maxNodes || c.node(i).Name != name {
		return Node{}, fmt.Errorf("%q is not a node's name (n1, n2, …)", name)
	}
	n := c.node(i)
	if _, err := os.Stat(n.Dir); err != nil {
		return Node{}, fmt.Errorf("this cluster has no node %s", name)
	}
	return n, nil
}

// nodes are the nodes that the cluster was brought up with, in order.
func (c *Cluster) nodes() []Node {
	var found []Node
	for i := 1; i <= maxNodes; i++ {
		if n := c.node(i); exists(n.Dir) {
			found = append(found, n)
		}
	}
	return found
}

func (n Node) path(elem ...string) string {
	return filepath.Join(append([]string{n.Dir}, elem...)...)
}

// IP is the node's address on the bridge.
func (n Node) IP() string { return fmt.Sprintf("172.30.0.%d", 10+n.Index) }

// PodCIDR is the network of the node's pods.
func (n Node) PodCIDR() string { return fmt.Sprintf("10.44.%d.0/24", n.Index) }

// MAC is fixed, so that a node that comes back is not a stranger in its
// neighbours' ARP tables.
func (n Node) MAC() string { return fmt.Sprintf("02:4b:43:00:01:%02x", n.Index) }

// Link is the bridge's side of the node's veth pair, Cgroup the name of the root of
// the node's control groups.
func (n Node) Link() string   { return "dalsegno-" + n.Name }
func (n Node) Cgroup() string { return "dalsegno-" + n.Name }

// Socket is where the node's containerd listens.
func (n Node) Socket() string { return n.path("containerd.sock") }

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
