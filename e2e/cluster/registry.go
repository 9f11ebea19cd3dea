package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

const (
	// registryHost is the registry in image references. Only the nodes' containerd
	// knows it, by its hosts.toml; there is no DNS entry.
	registryHost    = "registry.dalsegno.test"
	registryAddress = bridgeIP + ":5050"

	pauseImage = registryHost + "/pause:1"
)

// repository is NAME:TAG as people write it, with or without the registry's name.
func repository(image string) (repo, tag string, err error) {
	repo, tag, ok := strings.Cut(strings.TrimPrefix(image, registryHost+"/"), ":")
	if !ok || repo == "" || tag == "" {
		return "", "", fmt.Errorf("%q is not NAME:TAG", image)
	}
	return repo, tag, nil
}

// push builds the image, sends it to the cluster's registry and returns the
// reference by digest that a pod can use.
func push(image string, spec ImageSpec) (string, error) {
	repo, tag, err := repository(image)
	if err != nil {
		return "", err
	}
	built, err := buildImage(spec)
	if err != nil {
		return "", err
	}
	ref, err := name.ParseReference(registryAddress+"/"+repo+":"+tag, name.Insecure, name.StrictValidation)
	if err != nil {
		return "", err
	}
	if err := remote.Write(ref, built, remote.WithTransport(direct)); err != nil {
		return "", fmt.Errorf("pushing %s: %w", image, err)
	}
	digest, err := built.Digest()
	return registryHost + "/" + repo + "@" + digest.String(), err
}

// pushPause puts the image of every pod's sandbox into the registry.
func (c *Cluster) pushPause() error {
	root, err := os.MkdirTemp(c.Dir, "pause-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(root)
	program, err := os.ReadFile(c.program("pause"))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(root, "pause"), program, 0o755); err != nil {
		return err
	}
	_, err = push(pauseImage, ImageSpec{Layers: []string{root}, Entrypoint: []string{"/pause"}, User: "65535", WorkDir: "/"})
	return err
}
