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
	// registryHost is the registry's name in image references. It has no DNS entry. The
	// nodes' containerd resolves it by its hosts.toml.
	registryHost    = "registry.dalsegno.test"
	registryAddress = bridgeIP + ":5050"

	pauseImage = registryHost + "/pause:1"
)

// repository splits NAME:TAG, with or without the registry's name.
func repository(image string) (repo, tag string, err error) {
	repo, tag, ok := strings.Cut(strings.TrimPrefix(image, registryHost+"/"), ":")
	if !ok || repo == "" || tag == "" {
		return "", "", fmt.Errorf("%q is not NAME:TAG", image)
	}
	return repo, tag, nil
}

// push builds an image, pushes it to the cluster's registry and returns its reference by
// digest for a pod.
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
	if err := remote.Write(ref, built, remote.WithTransport(noProxyTransport)); err != nil {
		return "", fmt.Errorf("pushing %s: %w", image, err)
	}
	digest, err := built.Digest()
	return registryHost + "/" + repo + "@" + digest.String(), err
}

// pushPause pushes the image of the pods' sandboxes.
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
