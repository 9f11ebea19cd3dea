package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// firstVolumes is the number of PersistentVolumes of a new cluster. A volume stays when its
// claim is deleted (reclaim policy Retain), so each volume serves only one claim.
const firstVolumes = 12

type object map[string]any

// ensureVolumes creates the default StorageClass and the first volumes on node n1.
func (c *Cluster) ensureVolumes() error {
	a, err := c.api()
	if err != nil {
		return err
	}
	if err := a.create("/apis/storage.k8s.io/v1/storageclasses", storageClass()); err != nil {
		return err
	}
	for i := 1; i <= firstVolumes; i++ {
		if err := c.createVolume(a, i); err != nil {
			return err
		}
	}
	return nil
}

// addVolume creates another volume and returns its name.
func (c *Cluster) addVolume() (string, error) {
	a, err := c.api()
	if err != nil {
		return "", err
	}
	dirs, err := filepath.Glob(c.node(1).path("volumes", "volume-*"))
	if err != nil {
		return "", err
	}
	next := len(dirs) + 1 // directories are never removed, so the number is new
	return volumeName(next), c.createVolume(a, next)
}

func volumeName(i int) string { return fmt.Sprintf("volume-%02d", i) }

func (c *Cluster) createVolume(a *api, i int) error {
	dir := c.node(1).path("volumes", volumeName(i))
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	// Containers run as other users than root.
	if err := os.Chmod(dir, 0o777); err != nil {
		return err
	}
	return a.create("/api/v1/persistentvolumes", volume(i, dir))
}

func storageClass() object {
	return object{
		"apiVersion": "storage.k8s.io/v1",
		"kind":       "StorageClass",
		"metadata": object{
			"name":        "standard",
			"annotations": object{"storageclass.kubernetes.io/is-default-class": "true"},
		},
		"provisioner":   "kubernetes.io/no-provisioner",
		"reclaimPolicy": "Retain",
		// A claim is bound when its pod is scheduled, so that the pod is put on the volume's node.
		"volumeBindingMode": "WaitForFirstConsumer",
	}
}

// volume returns a `local` volume and not a `hostPath`, because the kubelet applies a pod's
// fsGroup to it. Its size is not enforced.
func volume(i int, dir string) object {
	return object{
		"apiVersion": "v1",
		"kind":       "PersistentVolume",
		"metadata":   object{"name": volumeName(i)},
		"spec": object{
			"storageClassName":              "standard",
			"capacity":                      object{"storage": "10Gi"},
			"accessModes":                   []string{"ReadWriteOnce"},
			"persistentVolumeReclaimPolicy": "Retain",
			"local":                         object{"path": dir},
			"nodeAffinity": object{"required": object{"nodeSelectorTerms": []object{{
				"matchExpressions": []object{{"key": "kubernetes.io/hostname", "operator": "In", "values": []string{"n1"}}},
			}}}},
		},
	}
}

// awaitServiceAccount waits until pods can be created in the namespace default. Without its
// ServiceAccount they are refused.
func (c *Cluster) awaitServiceAccount() error {
	a, err := c.api()
	if err != nil {
		return err
	}
	return waitFor(30*time.Second, "the ServiceAccount default/default", func() (bool, error) {
		return a.get("/api/v1/namespaces/default/serviceaccounts/default", nil) == nil, nil
	})
}
