package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestBuildKeyDependsOnEveryInputAndNotOnTheClone(t *testing.T) {
	p := Program{Name: "x", module: "x", pkg: "."}
	write := func(dir, name, text string) { must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644)) }
	clone := func() string {
		dir := t.TempDir()
		write(dir, "go.mod", "module x\n")
		write(dir, "go.sum", "sum\n")
		write(dir, "main.go", "package main\n")
		return dir
	}
	key := func(dir string, p Program) string {
		k, err := buildKey(dir, p)
		must(t, err)
		return k
	}
	plain := key(clone(), p)
	if key(clone(), p) != plain {
		t.Error("a second clone has another key")
	}
	for _, file := range []string{"go.mod", "go.sum", "main.go", "more.go"} {
		dir := clone()
		write(dir, file, "// other\n")
		if key(dir, p) == plain {
			t.Errorf("a change of %s does not change the key", file)
		}
	}
	flagged := p
	flagged.ldflags = "-X main.version=2"
	if key(clone(), flagged) == plain {
		t.Error("other flags do not change the key")
	}
}

func TestPushAcceptsFlagsAndNameInAnyOrder(t *testing.T) {
	for _, args := range [][]string{
		{"demo:1", "--rootfs", "a", "--layer", "b", "--entrypoint", "/x,-y", "--user", "65532"},
		{"--rootfs", "a", "demo:1", "--entrypoint=/x,-y", "--user=65532", "--layer=b"},
	} {
		name, spec, err := parsePush(args)
		must(t, err)
		if name != "demo:1" || len(spec.Layers) != 2 || spec.Layers[1] != "b" || len(spec.Entrypoint) != 2 || spec.User != "65532" || spec.WorkDir != "/" {
			t.Errorf("%v: %s %+v", args, name, spec)
		}
	}
	for _, args := range [][]string{{}, {"a:1", "b:1"}, {"a:1", "--nonsense"}} {
		if _, _, err := parsePush(args); err == nil {
			t.Errorf("%v is accepted", args)
		}
	}
}

func TestNodeByNameReturnsOnlyExistingNodes(t *testing.T) {
	c := testCluster(t)
	must(t, os.MkdirAll(c.node(1).Dir, 0o755))
	if n, err := c.nodeByName("n1"); err != nil || n.IP() != "172.30.0.11" || n.PodCIDR() != "10.44.1.0/24" {
		t.Errorf("%+v %v", n, err)
	}
	for _, name := range []string{"n2", "n0", "n01", "n10", "1", "", "../n1"} {
		if _, err := c.nodeByName(name); err == nil {
			t.Errorf("%q is accepted as a node", name)
		}
	}
}
