package main

import (
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

func TestAuditPolicyLogsOnlyWritesToPodsAndRuns(t *testing.T) {
	var policy struct {
		Kind       string   `json:"kind"`
		OmitStages []string `json:"omitStages"`
		Rules      []struct {
			Level     string   `json:"level"`
			Verbs     []string `json:"verbs"`
			Resources []struct {
				Group     string   `json:"group"`
				Resources []string `json:"resources"`
			} `json:"resources"`
		} `json:"rules"`
	}
	b, err := renderTemplate("audit-policy.yaml", nil)
	must(t, err)
	must(t, yaml.UnmarshalStrict(b, &struct {
		APIVersion string `json:"apiVersion"`
		Kind       any    `json:"kind"`
		OmitStages any    `json:"omitStages"`
		Rules      any    `json:"rules"`
	}{}))
	must(t, yaml.Unmarshal(b, &policy))
	if policy.Kind != "Policy" || len(policy.Rules) != 2 || !slices.Equal(policy.OmitStages, []string{"RequestReceived"}) {
		t.Fatalf("unexpected policy: %+v", policy)
	}
	writes, rest := policy.Rules[0], policy.Rules[1]
	if writes.Level != "Metadata" || rest.Level != "None" || rest.Resources != nil {
		t.Errorf("levels %s and %s", writes.Level, rest.Level)
	}
	for _, read := range []string{"get", "list", "watch"} {
		if slices.Contains(writes.Verbs, read) {
			t.Errorf("%s is logged", read)
		}
	}
	for _, name := range []string{"pods", "pods/status", "pods/eviction", "pods/binding"} {
		if !slices.Contains(writes.Resources[0].Resources, name) {
			t.Errorf("writes to %s are not logged", name)
		}
	}
	if own := writes.Resources[1]; own.Group != "dalsegno.dev" || own.Resources != nil {
		t.Errorf("not all kinds of the group are logged: %+v", own)
	}
}

func TestConfigurationFilesOfANodeAreFilledInAndValid(t *testing.T) {
	c := &Cluster{Dir: "/state"}
	for _, name := range []string{"kubelet.yaml", "kube-proxy.yaml", "containerd.toml", "hosts.toml", "pods.conflist"} {
		b, err := renderTemplate(name, c.nodeConf(c.node(2)))
		must(t, err)
		switch {
		case strings.HasSuffix(name, ".yaml"):
			var parsed map[string]any
			must(t, yaml.Unmarshal(b, &parsed))
		case strings.HasSuffix(name, ".conflist"):
			var parsed map[string]any
			must(t, json.Unmarshal(b, &parsed))
		}
		if text := string(b); strings.Contains(text, "<no value>") || strings.Contains(text, "nodes/n1") {
			t.Errorf("%s is not the file of n2:\n%s", name, text)
		}
	}
}

func TestVolumesAreOnN1AndOfTheDefaultClass(t *testing.T) {
	b, err := json.Marshal([]object{storageClass(), volume(3, "/d")})
	must(t, err)
	for _, part := range []string{`"is-default-class":"true"`, `"volume-03"`, `"values":["n1"]`, `"Retain"`, `"path":"/d"`} {
		if !strings.Contains(strings.ReplaceAll(string(b), "storageclass.kubernetes.io/", ""), part) {
			t.Errorf("no %s in %s", part, b)
		}
	}
}

func TestNodeGetsTheAvailableControllersThatItsKubeletNeeds(t *testing.T) {
	for available, enabled := range map[string]string{
		"cpuset cpu io memory hugetlb pids rdma misc": "+cpuset +cpu +io +memory +hugetlb +pids",
		"cpu memory pids\n":                           "+cpu +memory +pids",
	} {
		if got := enableControllers(available); got != enabled {
			t.Errorf("of %q: %q", available, got)
		}
	}
}

func TestEnvironmentExcludesTheClusterFromProxies(t *testing.T) {
	exports := testCluster(t).environment()
	out, err := exec.Command("bash", "-c", "unset no_proxy; NO_PROXY=mine; "+exports+`echo "$NO_PROXY" "$no_proxy"`).Output()
	must(t, err)
	if want := "mine,172.30.0.0/24,10.44.0.0/16,10.45.0.0/16 172.30.0.0/24,10.44.0.0/16,10.45.0.0/16\n"; string(out) != want {
		t.Errorf("%q", out)
	}
}
