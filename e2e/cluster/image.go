package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// ImageSpec describes an image.
type ImageSpec struct {
	Layers     []string // directories, the lowest layer first
	Entrypoint []string
	User       string // empty means root
	WorkDir    string
}

// buildImage builds an OCI image.
//
// Guarantees: the same names, contents, modes and links give the same digest on every
// machine and at any time. The files' owners and times do not matter: all files belong
// to root and have the time 1970.
func buildImage(spec ImageSpec) (v1.Image, error) {
	if len(spec.Layers) == 0 {
		return nil, errors.New("an image needs at least one --rootfs or --layer")
	}
	image := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	image = mutate.ConfigMediaType(image, types.OCIConfigJSON)
	for _, dir := range spec.Layers {
		layer, err := layerOf(dir)
		if err != nil {
			return nil, fmt.Errorf("packing %s: %w", dir, err)
		}
		if image, err = mutate.Append(image, mutate.Addendum{Layer: layer}); err != nil {
			return nil, err
		}
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", runtime.GOARCH
	file.Config = v1.Config{
		Entrypoint: spec.Entrypoint,
		User:       spec.User,
		WorkingDir: spec.WorkDir,
		Env:        []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
	}
	return mutate.ConfigFile(image, file)
}

// dirLayer is a layer with the files of a directory. It is not compressed, so that its digest does not depend on the
// version of a compressor. It is only copied on the same disk. The directory is packed anew for each reader, so that a
// layer of any size needs no memory.
type dirLayer struct {
	dir    string
	digest v1.Hash
	size   int64
}

// layerOf packs a directory once, for the digest and the size.
func layerOf(dir string) (v1.Layer, error) {
	layer := &dirLayer{dir: dir}
	packed, err := layer.Uncompressed()
	if err != nil {
		return nil, err
	}
	defer packed.Close()
	layer.digest, layer.size, err = v1.SHA256(packed)
	return layer, err
}

func (l *dirLayer) Digest() (v1.Hash, error)            { return l.digest, nil }
func (l *dirLayer) DiffID() (v1.Hash, error)            { return l.digest, nil }
func (l *dirLayer) Size() (int64, error)                { return l.size, nil }
func (l *dirLayer) MediaType() (types.MediaType, error) { return types.OCIUncompressedLayer, nil }
func (l *dirLayer) Compressed() (io.ReadCloser, error)  { return l.Uncompressed() }
func (l *dirLayer) Uncompressed() (io.ReadCloser, error) {
	reader, writer := io.Pipe()
	go func() { writer.CloseWithError(pack(writer, l.dir)) }()
	return reader, nil
}

// pack writes a directory as a tar file.
func pack(out io.Writer, dir string) error {
	w := tar.NewWriter(out)
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error { // in lexical order
		if err != nil || path == dir {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		return addEntry(w, path, rel, entry)
	})
	return errors.Join(err, w.Close())
}

func addEntry(w *tar.Writer, path, rel string, entry fs.DirEntry) error {
	info, err := entry.Info()
	if err != nil {
		return err
	}
	var target string
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		if target, err = os.Readlink(path); err != nil {
			return err
		}
	case !info.Mode().IsRegular() && !info.IsDir():
		return fmt.Errorf("%s is neither a file, a directory nor a link", path)
	}
	header, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	header.Name = rel
	if info.IsDir() {
		header.Name += "/"
	}
	header.Uid, header.Gid, header.Uname, header.Gname = 0, 0, "", ""
	header.ModTime, header.AccessTime, header.ChangeTime = time.Unix(0, 0), time.Time{}, time.Time{}
	header.PAXRecords, header.Format = nil, tar.FormatUnknown
	if err := w.WriteHeader(header); err != nil || !info.Mode().IsRegular() {
		return err
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.Copy(w, file)
	return err
}
