package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// pythonPackages are Debian's packages of Python 3.11 with its standard library and the
// libraries that it loads. There is no shell and no package manager.
var pythonPackages = []string{
	"python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib",
	"libc6", "libgcc-s1", "libcrypt1", "libexpat1", "zlib1g", "libssl3", "libbz2-1.0", "liblzma5", "libffi8",
	"libstdc++6", // compiled packages of examples load it
	"libsqlite3-0", "libuuid1", "libncursesw6", "libtinfo6", "libreadline8", "libdb5.3", "libnsl2", "libtirpc3",
	"media-types",
}

// pythonFiles are files that Debian creates on the installation of packages.
var pythonFiles = map[string]string{
	"etc/passwd":        "root:x:0:0:root:/:/nonexistent\nnonroot:x:65532:65532:nonroot:/tmp:/nonexistent\n",
	"etc/group":         "root:x:0:\nnonroot:x:65532:\n",
	"etc/nsswitch.conf": "hosts: files dns\n",
}

// pythonRecipe must be changed if the functions below change their result.
const pythonRecipe = "1"

// pythonBase returns the root file system of a minimal Python. It is built once and cached.
func pythonBase() (string, error) {
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	key := sha256.Sum256(fmt.Append(nil, pythonRecipe, pythonPackages, pythonFiles))
	root := filepath.Join(cache, "python-"+hex.EncodeToString(key[:8]))
	if exists(root) {
		return root, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	work, err := os.MkdirTemp(cache, "python-*.tmp")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	newRoot := filepath.Join(work, "root")
	err = sequence(
		func() error { return unpackPackages(work, newRoot, pythonPackages) },
		func() error { return trimPython(newRoot) },
		func() error { return compilePython(newRoot) },
	)
	if err != nil {
		return "", err
	}
	if err := os.Rename(newRoot, root); err != nil && !exists(root) {
		return "", err
	}
	return root, nil
}

func unpackPackages(work, root string, names []string) error {
	cmd := exec.Command("apt-get", append([]string{"download", "-o", "APT::Sandbox::User=root"}, names...)...)
	cmd.Dir = work
	if runCmd(cmd) != nil {
		// The package lists may be outdated or missing.
		retry := exec.Command(cmd.Args[0], cmd.Args[1:]...)
		retry.Dir = work
		if err := sequence(func() error { return aptGet("update") }, func() error { return runCmd(retry) }); err != nil {
			return err
		}
	}
	files, err := filepath.Glob(filepath.Join(work, "*.deb"))
	for _, file := range files {
		err = errors.Join(err, runProgram("dpkg-deb", "--extract", file, root))
	}
	return err
}

// trimPython removes documentation and adds the files that dpkg would have created.
func trimPython(root string) error {
	for _, dir := range []string{"usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/lintian"} {
		if err := os.RemoveAll(filepath.Join(root, dir)); err != nil {
			return err
		}
	}
	for file, content := range pythonFiles {
		path := filepath.Join(root, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return err
		}
	}
	tmp := filepath.Join(root, "tmp")
	return sequence(
		func() error { return os.MkdirAll(tmp, 0o755) },
		func() error { return os.Chmod(tmp, os.ModeSticky|0o777) },
		func() error { return os.Symlink("python3.11", filepath.Join(root, "usr/bin/python3")) },
	)
}

// compilePython compiles the byte code, which a pod without root could not store. It uses
// unchecked hashes: checked ones would read every source at start, and file times do not
// work, because they are all 0.
func compilePython(root string) error {
	args := []string{"chroot", root, "/usr/bin/python3.11", "-m", "compileall", "-q",
		"--invalidation-mode", "unchecked-hash", "/usr/lib/python3.11"}
	if os.Geteuid() != 0 {
		args = append([]string{"unshare", "--map-root-user"}, args...)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = []string{"PATH=/usr/bin", "PYTHONHASHSEED=0"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("compiling Python's library: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}
