package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

const etcdURL = "http://127.0.0.1:12379"

// Component is a program of the cluster that runs in the machine's own namespaces.
type Component struct {
	Name  string
	args  func(c *Cluster) []string
	ready func(c *Cluster) error // returns nil when the component is ready
}

// components lists the components in the order in which they start.
var components = []Component{
	{"registry", registryArgs, func(*Cluster) error { return probe("http://" + registryAddress + "/v2/") }},
	{"etcd", etcdArgs, func(*Cluster) error { return probe(etcdURL + "/health") }},
	{"apiserver", apiServerArgs, (*Cluster).apiServerReady},
	{"controller-manager", controllerManagerArgs, insecureProbe("https://127.0.0.1:10257/healthz")},
	{"scheduler", schedulerArgs, insecureProbe("https://127.0.0.1:10259/healthz")},
	{"coredns", coreDNSArgs, func(*Cluster) error { return probe("http://" + bridgeIP + ":8181/ready") }},
}

func componentByName(name string) (Component, error) {
	i := slices.IndexFunc(components, func(component Component) bool { return component.Name == name })
	if i < 0 {
		var names []string
		for _, component := range components {
			names = append(names, component.Name)
		}
		return Component{}, fmt.Errorf("no component %q; there are %s", name, strings.Join(names, ", "))
	}
	return components[i], nil
}

// startComponent starts a component unless it runs. It does not wait until the component
// is ready.
func (c *Cluster) startComponent(name string) error {
	component, err := componentByName(name)
	if err != nil {
		return err
	}
	return c.launch(name, component.args(c)...)
}

// awaitComponent waits up to 60 s until a component is ready. If its process has ended,
// it fails at once with the end of the log.
func (c *Cluster) awaitComponent(name string) error {
	component, err := componentByName(name)
	if err != nil {
		return err
	}
	var last error
	err = waitFor(60*time.Second, name, func() (bool, error) {
		if _, ok := c.running(name); !ok {
			return false, errors.New("the process has ended")
		}
		last = component.ready(c)
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("%w (%v); the end of its log:\n%s", err, last, c.logTail(name))
	}
	return nil
}

// stopComponent kills a component with SIGKILL, as a crash would.
func (c *Cluster) stopComponent(name string) error {
	if _, err := componentByName(name); err != nil {
		return err
	}
	r, err := c.record(name)
	if err == nil {
		err = r.kill()
	}
	if errors.Is(err, errGone) {
		fmt.Printf("%s does not run\n", name)
		return nil
	}
	return err
}

func (c *Cluster) apiServerReady() error {
	a, err := c.api()
	if err != nil {
		return err
	}
	return a.get("/readyz", nil)
}

// logTail returns the last lines of a program's log, for an error message.
func (c *Cluster) logTail(name string) string {
	b, err := os.ReadFile(c.logPath(name))
	if err != nil {
		return err.Error()
	}
	lines := bytes.Split(bytes.TrimSpace(b), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-8):], []byte("\n")))
}

func registryArgs(c *Cluster) []string {
	return []string{"docker-registry", "serve", c.path("registry.yaml")}
}

func etcdArgs(c *Cluster) []string {
	const peer = "http://127.0.0.1:12380"
	return []string{c.program("etcd"),
		"--data-dir=" + c.path("etcd"),
		"--unsafe-no-fsync", // only a crash of the whole machine can lose data
		"--listen-client-urls=" + etcdURL, "--advertise-client-urls=" + etcdURL,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=default=" + peer,
		"--log-level=warn",
	}
}

func apiServerArgs(c *Cluster) []string {
	pki := func(name string) string { return c.path("pki", name) }
	return []string{c.program("kube-apiserver"),
		"--etcd-servers=" + etcdURL,
		"--bind-address=" + bridgeIP, "--secure-port=6443", "--advertise-address=" + bridgeIP,
		"--service-cluster-ip-range=" + serviceNet,
		"--tls-cert-file=" + pki("apiserver.crt"), "--tls-private-key-file=" + pki("apiserver.key"),
		"--client-ca-file=" + pki("ca.crt"), "--anonymous-auth=true",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + pki("sa.pub"), "--service-account-signing-key-file=" + pki("sa.key"),
		"--kubelet-client-certificate=" + pki("apiserver-kubelet.crt"), "--kubelet-client-key=" + pki("apiserver-kubelet.key"),
		"--kubelet-certificate-authority=" + pki("ca.crt"), "--kubelet-preferred-address-types=InternalIP",
		"--requestheader-client-ca-file=" + pki("front-proxy-ca.crt"), "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-username-headers=X-Remote-User",
		"--proxy-client-cert-file=" + pki("front-proxy.crt"), "--proxy-client-key-file=" + pki("front-proxy.key"),
		// Webhooks are called at the pods' addresses, because no kube-proxy runs on the machine of the API server.
		"--enable-aggregator-routing=true",
		// The pods of a lost node are deleted after five seconds instead of five minutes.
		"--default-not-ready-toleration-seconds=5", "--default-unreachable-toleration-seconds=5",
		"--audit-policy-file=" + c.path("audit-policy.yaml"), "--audit-log-path=" + c.auditLog(), "--audit-log-maxsize=1000",
		"--allow-privileged=true", "--profiling=false",
	}
}

func controllerManagerArgs(c *Cluster) []string {
	kubeconfig := c.path("pki/controller-manager.kubeconfig")
	return []string{c.program("kube-controller-manager"),
		"--kubeconfig=" + kubeconfig, "--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
		"--leader-elect=false", "--bind-address=127.0.0.1", "--use-service-account-credentials=true",
		"--service-account-private-key-file=" + c.path("pki/sa.key"), "--root-ca-file=" + c.path("pki/ca.crt"),
		"--cluster-signing-cert-file=" + c.path("pki/ca.crt"), "--cluster-signing-key-file=" + c.path("pki/ca.key"),
		"--node-monitor-period=1s", "--node-monitor-grace-period=10s", "--node-startup-grace-period=20s",
		"--node-eviction-rate=10", "--kube-api-qps=500", "--kube-api-burst=1000",
		"--terminated-pod-gc-threshold=1000", "--pvclaimbinder-sync-period=5s",
		"--flex-volume-plugin-dir=" + c.path("volume-plugins"), // the default would be created below /usr
	}
}

func schedulerArgs(c *Cluster) []string {
	kubeconfig := c.path("pki/scheduler.kubeconfig")
	return []string{c.program("kube-scheduler"),
		"--kubeconfig=" + kubeconfig, "--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
		"--leader-elect=false", "--bind-address=127.0.0.1", "--kube-api-qps=500", "--kube-api-burst=1000",
	}
}

func coreDNSArgs(c *Cluster) []string {
	return []string{c.program("coredns"), "-conf", c.path("Corefile")}
}
