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

// The cluster's addresses. They are fixed, so a machine runs one cluster only; see
// [Cluster.claimBridge].
const (
	bridgeName  = "dalsegno0"
	bridgeMAC   = "02:4b:43:00:00:01"
	bridgeIP    = "172.30.0.1"
	bridgeNet   = "172.30.0.0/24"
	podNetwork  = "10.44.0.0/16"
	serviceNet  = "10.45.0.0/16"
	apiServerIP = "10.45.0.1" // the first address of serviceNet: Service default/kubernetes
	maxNodes    = 9           // node I has the address 172.30.0.(10+I) and pods in 10.44.I.0/24
)

// Cluster is a cluster on this machine. Its whole state is in Dir. The records in
// Dir/run identify its processes.
type Cluster struct {
	Dir string // state directory, absolute
	Src string // directory of this program's sources, with kube/, helm/, kwok/ and pause/
}

// openCluster finds the state directory and the sources. It creates nothing.
func openCluster() (*Cluster, error) {
	dir, err := filepath.Abs(cmp.Or(os.Getenv("DALSEGNO_CLUSTER_DIR"), "/var/tmp/dalsegno-cluster"))
	if err != nil {
		return nil, err
	}
	src, err := sources()
	return &Cluster{Dir: dir, Src: src}, err
}

// sources returns the directory of this program's sources: the one in which it was
// compiled or, for a binary built with -trimpath, the one in the clone that contains the
// working directory.
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
	return "", fmt.Errorf("cannot find the sources of the cluster: run this program inside a clone")
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

// program returns the path of a program of the kube binary.
func (c *Cluster) program(name string) string { return c.path("libexec", name) }

// environment returns the exports that a shell needs to use the cluster, one per line.
func (c *Cluster) environment() string {
	var b strings.Builder
	// Programs read either spelling. The cluster is reached without a proxy.
	direct := strings.Join([]string{bridgeNet, podNetwork, serviceNet}, ",")
	for _, v := range [][2]string{
		{"NO_PROXY", "${NO_PROXY:+$NO_PROXY,}" + direct},
		{"no_proxy", "${no_proxy:+$no_proxy,}" + direct},
		{"KUBECONFIG", c.kubeconfig()},
		{"PATH", c.path("bin") + ":$PATH"},
		{"DALSEGNO_CLUSTER_DIR", c.Dir},
		{"DALSEGNO_AUDIT_LOG", c.auditLog()},
		// Directories of Helm for this cluster, without the user's repositories and plugins.
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

// nodeByName returns the existing node with this name.
func (c *Cluster) nodeByName(name string) (Node, error) {
	i, err := strconv.Atoi(strings.TrimPrefix(name, "n"))
	if err != nil || i < 1 || i > maxNodes || c.node(i).Name != name {
		return Node{}, fmt.Errorf("%q is not the name of a node (n1, n2, …)", name)
	}
	n := c.node(i)
	if _, err := os.Stat(n.Dir); err != nil {
		return Node{}, fmt.Errorf("this cluster has no node %s", name)
	}
	return n, nil
}

// nodes returns the cluster's nodes in order.
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

// MAC is fixed, so that the ARP entries of the other nodes stay valid when a node comes
// back.
func (n Node) MAC() string { return fmt.Sprintf("02:4b:43:00:01:%02x", n.Index) }

// Link is the name of the bridge's side of the node's veth pair. Cgroup is the name of
// the root of the node's control groups.
func (n Node) Link() string   { return "dalsegno-" + n.Name }
func (n Node) Cgroup() string { return "dalsegno-" + n.Name }

// Socket is the path of the socket of the node's containerd.
func (n Node) Socket() string { return n.path("containerd.sock") }

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
