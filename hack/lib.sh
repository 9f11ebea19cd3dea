# Functions for the scripts of this directory. Sourcing it changes to the root of the repository.
# shellcheck shell=bash
set -euo pipefail
shopt -s inherit_errexit # a failure inside $(…) ends the script too
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The state directory of the cluster on this machine, and its registry.
export DALSEGNO_CLUSTER_DIR=${DALSEGNO_CLUSTER_DIR:-/var/tmp/dalsegno-cluster}
CLUSTER_REGISTRY=registry.dalsegno.test

# The build's output. Every build has the same target, see .cargo/config.toml.
TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}
PROGRAMS=$TARGET_DIR/x86_64-unknown-linux-gnu/debug

# For the end-to-end tests: the program that breaks machines, and the scripted agent's program for images of it.
export DALSEGNO_CLUSTER_BIN=$DALSEGNO_CLUSTER_DIR/bin/cluster
export DALSEGNO_E2E_AGENT=$TARGET_DIR/images/dalsegno-e2e-agent/e2e-agent

# The previous version, for the test of upgrades. Nothing is released yet, so it is a commit: the last one whose schema has
# one migration. A program before that one refuses the schema of this version, so it could not be rolled back to.
PREVIOUS_VERSION=bf84e64d
export DALSEGNO_E2E_PREVIOUS_CHART=$TARGET_DIR/previous/source/charts/dalsegno
has_previous() { git cat-file -e "$PREVIOUS_VERSION^{commit}" 2>/dev/null; }

if [[ -t 1 ]]; then BOLD=$'\e[1m' DIM=$'\e[2m' GREEN=$'\e[32m' RED=$'\e[31m' PLAIN=$'\e[0m'; else BOLD='' DIM='' GREEN='' RED='' PLAIN=''; fi

step() { printf '\n%s%s%s\n' "$BOLD" "$*" "$PLAIN"; }
die() {
    printf '%s%s%s\n' "$RED" "$*" "$PLAIN" >&2
    exit 1
}

# need PROGRAM PACKAGE [PROGRAM PACKAGE]…: installs the Debian packages of programs or files that are missing.
need() {
    local packages=()
    while (($# > 0)); do
        [[ -e $1 ]] || PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null || packages+=("$2")
        shift 2
    done
    ((${#packages[@]} > 0)) || return 0
    command -v apt-get >/dev/null || die "Please install ${packages[*]}."
    [[ $(id -u) = 0 ]] || die "Please install ${packages[*]}: apt-get install ${packages[*]}"
    echo "installing ${packages[*]}"
    export DEBIAN_FRONTEND=noninteractive
    [[ -n ${apt_updated:-} ]] || apt-get update -qq
    apt_updated=yes
    apt-get install -qq --no-install-recommends "${packages[@]}" >/dev/null
}

# need_languages: checks for the compilers, which only the user can install, and installs what the linker needs.
need_languages() {
    local tool
    for tool in go cargo python3; do
        command -v "$tool" >/dev/null || die "Please install $tool: Go 1.26, Rust 1.94 and Python 3.10 or later are needed."
    done
    need cc gcc ld binutils /usr/include/stdio.h libc6-dev
}

# need_postgres: puts PostgreSQL's programs into the path. The tests start their own servers, so Debian's package must
# not start one.
need_postgres() {
    if ! compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null; then
        need pg_createcluster postgresql-common
        sed -i 's/^#\?create_main_cluster.*/create_main_cluster = false/' /etc/postgresql-common/createcluster.conf
        need postgres postgresql
    fi
    need pgbouncer pgbouncer openssl openssl
    local bin
    bin=$(compgen -G '/usr/lib/postgresql/*/bin' | sort -V | tail -1)
    export PATH=$PATH:$bin
}

# venv NAME PACKAGE…: makes or updates an environment outside of the clone, and sets `python` to its Python. BASE_PYTHON
# says of which Python it is made. Two steps may ask for it at the same time. If the versions are installed, no registry
# is asked.
venv() {
    local base=${BASE_PYTHON:-python3} directory=${XDG_CACHE_HOME:-$HOME/.cache}/dalsegno/$1
    "$base" -c 'import ensurepip' 2>/dev/null || need /nowhere python3-venv
    mkdir -p "$directory"
    (
        flock 9
        [[ -x $directory/bin/python && -x $directory/bin/pip ]] || "$base" -m venv --clear "$directory" || exit
        "$directory/bin/python" -m pip install --quiet --disable-pip-version-check "${@:2}"
    ) 9>"$directory.lock" || return
    python=$directory/bin/python
}

# need_pytest: sets `pytest` to a command: the user's, or that of an environment. It can run tests at the same time.
need_pytest() {
    local python=python3
    python3 -c 'import pytest, xdist' 2>/dev/null || venv pytest pytest==9.2.0 pytest-xdist==3.8.0
    pytest=("$python" -m pytest)
}

# need_types: sets `type_checkers` to the programs of an environment with mypy, pyright, and pytest for its types.
need_types() {
    local python
    venv mypy mypy==2.4.1 pyright==1.1.414 pytest==9.2.0 || return
    type_checkers=${python%/*}
}

# cluster COMMAND…: runs the program of e2e/cluster. Paths must be absolute.
cluster() { go run -C e2e/cluster . "$@"; }

# own_cluster: succeeds if the cluster on this machine is used, and not one that KUBECONFIG names.
own_cluster() { [[ ${KUBECONFIG:-} = "" || $KUBECONFIG = "$DALSEGNO_CLUSTER_DIR/kubeconfig" ]]; }

# use_cluster: makes kubectl and helm use the cluster. The cluster on this machine is started if necessary.
use_cluster() {
    if own_cluster; then
        [[ $(id -u) = 0 ]] || die "The cluster on this machine needs root. Set KUBECONFIG to use your own cluster instead."
        need ip iproute2 curl curl
        cluster up
        eval "$(cluster env)"
    else
        local tool
        for tool in kubectl helm; do
            command -v "$tool" >/dev/null || die "KUBECONFIG is set, so your own cluster is used. Please install $tool."
        done
        [[ -n ${IMAGE_REGISTRY:-} ]] || die "KUBECONFIG is set, so your own cluster is used: $KUBECONFIG
Set IMAGE_REGISTRY=host/prefix to a registry that you may push to and that the nodes can pull from, for example
    make demo IMAGE_REGISTRY=ghcr.io/you/dalsegno        (log in first: skopeo login ghcr.io)
or unset KUBECONFIG to use the cluster on this machine."
        kubectl version >/dev/null || die "The cluster of KUBECONFIG=$KUBECONFIG does not answer."
    fi
}
