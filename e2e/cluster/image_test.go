package main

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// tree creates a small root file system whose files have this time.
func tree(t *testing.T, when time.Time, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		path := filepath.Join(dir, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(name), 0o644))
		must(t, os.Chtimes(path, when, when))
	}
	must(t, os.Symlink("a", filepath.Join(dir, "link")))
	return dir
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func digestOf(t *testing.T, spec ImageSpec) string {
	t.Helper()
	image, err := buildImage(spec)
	must(t, err)
	digest, err := image.Digest()
	must(t, err)
	return digest.String()
}

func TestDigestDoesNotDependOnTimesAndOrderOfFiles(t *testing.T) {
	one := ImageSpec{Layers: []string{tree(t, time.Unix(1, 0), "a", "b/c")}, Entrypoint: []string{"/a"}, User: "65532"}
	two := ImageSpec{Layers: []string{tree(t, time.Now(), "b/c", "a")}, Entrypoint: []string{"/a"}, User: "65532"}
	if a, b := digestOf(t, one), digestOf(t, two); a != b {
		t.Fatalf("%s is not %s", a, b)
	}
}

func TestDigestDependsOnEverythingThatAContainerCanSee(t *testing.T) {
	base := func() ImageSpec {
		return ImageSpec{Layers: []string{tree(t, time.Now(), "a")}, Entrypoint: []string{"/a"}, User: "65532", WorkDir: "/"}
	}
	plain := digestOf(t, base())
	for name, change := range map[string]func(*ImageSpec){
		"mode":       func(s *ImageSpec) { must(t, os.Chmod(filepath.Join(s.Layers[0], "a"), 0o755)) },
		"content":    func(s *ImageSpec) { must(t, os.WriteFile(filepath.Join(s.Layers[0], "a"), []byte("x"), 0o644)) },
		"file":       func(s *ImageSpec) { s.Layers = []string{tree(t, time.Now(), "a", "b")} },
		"layer":      func(s *ImageSpec) { s.Layers = append(s.Layers, s.Layers[0]) },
		"entrypoint": func(s *ImageSpec) { s.Entrypoint = []string{"/b"} },
		"user":       func(s *ImageSpec) { s.User = "1" },
		"workdir":    func(s *ImageSpec) { s.WorkDir = "/tmp" },
	} {
		spec := base()
		change(&spec)
		if digestOf(t, spec) == plain {
			t.Errorf("another %s gives the same digest", name)
		}
	}
}

func TestLayersAreInOrderAndUncompressed(t *testing.T) {
	low, high := tree(t, time.Now(), "a"), tree(t, time.Now(), "a", "b")
	image, err := buildImage(ImageSpec{Layers: []string{low, high}})
	must(t, err)
	layers, err := image.Layers()
	must(t, err)
	if len(layers) != 2 {
		t.Fatalf("%d layers", len(layers))
	}
	for i, dir := range []string{low, high} {
		want, err := layerOf(dir)
		must(t, err)
		wantDigest, err := want.Digest()
		must(t, err)
		digest, err := layers[i].Digest()
		must(t, err)
		diffID, err := layers[i].DiffID()
		must(t, err)
		if digest != wantDigest || digest != diffID {
			t.Errorf("layer %d: digest %s, diff id %s, want %s", i, digest, diffID, wantDigest)
		}
	}
}

func TestALayerIsTheSameEachTimeItIsRead(t *testing.T) {
	layer, err := layerOf(tree(t, time.Now(), "a", "b/c"))
	must(t, err)
	digest, err := layer.Digest()
	must(t, err)
	size, err := layer.Size()
	must(t, err)
	for range 2 {
		packed, err := layer.Compressed()
		must(t, err)
		read, length, err := v1.SHA256(packed)
		must(t, err)
		must(t, packed.Close())
		if read != digest || length != size {
			t.Errorf("%d bytes with %s, want %d with %s", length, read, size, digest)
		}
	}
}

func TestImageRefusesSpecialFilesAndNoLayers(t *testing.T) {
	dir := t.TempDir()
	must(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	if _, err := buildImage(ImageSpec{Layers: []string{dir}}); err == nil {
		t.Error("a named pipe became part of an image")
	}
	if _, err := buildImage(ImageSpec{}); err == nil {
		t.Error("an image without layers was built")
	}
}

func TestImageNamesMayContainTheRegistry(t *testing.T) {
	for _, image := range []string{"demo/agent:1", "registry.dalsegno.test/demo/agent:1"} {
		repo, tag, err := repository(image)
		if err != nil || repo != "demo/agent" || tag != "1" {
			t.Errorf("%s: %s %s %v", image, repo, tag, err)
		}
	}
	for _, image := range []string{"agent", "agent:", ":1"} {
		if _, _, err := repository(image); err == nil {
			t.Errorf("%q is accepted as NAME:TAG", image)
		}
	}
}
