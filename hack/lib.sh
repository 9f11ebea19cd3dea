# Shared by the scripts of this directory. Sourced, it moves to the root of the repository.
# shellcheck shell=bash
set -euo pipefail
shopt -s inherit_errexit # a failure inside of $(…) is one, too
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Where the cluster on this machine lives, and where its images are.
export DALSEGNO_CLUSTER_DIR=${DALSEGNO_CLUSTER_DIR:-/var/tmp/dalsegno-cluster}
CLUSTER_REGISTRY=registry.dalsegno.test

# What was built: one target for every build, see .cargo/config.toml.
TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}
PROGRAMS=$TARGET_DIR/x86_64-unknown-linux-gnu/debug

# What the stories ask for: the program that breaks machines, and the scripted agent that they make images of.
export DALSEGNO_CLUSTER_BIN=$DALSEGNO_CLUSTER_DIR/bin/cluster
export DALSEGNO_E2E_AGENT=$TARGET_DIR/images/dalsegno-e2e-agent/e2e-agent

if [[ -t 1 ]]; then BOLD=$'\e[1m' DIM=$'\e[2m' GREEN=$'\e[32m' RED=$'\e[31m' PLAIN=$'\e[0m'; else BOLD='' DIM='' GREEN='' RED='' PLAIN=''; fi

step() { printf '\n%s%s%s\n' "$BOLD" "$*" "$PLAIN"; }
die() {
    printf '%s%s%s\n' "$RED" "$*" "$PLAIN" >&2
    exit 1
}

# need PROGRAM PACKAGE [PROGRAM PACKAGE]…: installs the Debian packages of the programs (or files) that are missing.
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

# need_languages: what only the user can bring, and what linking takes.
need_languages() {
    local tool
    for tool in go cargo python3; do
        command -v "$tool" >/dev/null || die "Please install $tool: Go 1.26, Rust 1.94 and Python 3.10 or later are needed."
    done
    need cc gcc ld binutils /usr/include/stdio.h libc6-dev
}

# need_postgres: its programs, in the path. The tests start servers of their own, so Debian's package shall start none.
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

# The program of e2e/cluster. Paths given to it must be absolute.
cluster() { go run -C e2e/cluster . "$@"; }

# own_cluster: whether the cluster on this machine is meant, and not one that the user has named by KUBECONFIG.
own_cluster() { [[ ${KUBECONFIG:-} = "" || $KUBECONFIG = "$DALSEGNO_CLUSTER_DIR/kubeconfig" ]]; }

# use_cluster: from here on kubectl and helm speak to it. Ours is brought up first.
use_cluster() {
    if own_cluster; then
        [[ $(id -u) = 0 ]] || die "The cluster on this machine needs root. With KUBECONFIG set, your own is used instead."
        need ip iproute2 curl curl
        cluster up
        eval "$(cluster env)"
    else
        local tool
        for tool in kubectl helm; do
            command -v "$tool" >/dev/null || die "KUBECONFIG is set, so your own cluster is used; please install $tool."
        done
        [[ -n ${IMAGE_REGISTRY:-} ]] || die "KUBECONFIG is set, so your own cluster is used: $KUBECONFIG
Set IMAGE_REGISTRY=host/prefix to a registry that you may push to and that its nodes can pull from, for example
    make demo IMAGE_REGISTRY=ghcr.io/you/dalsegno        (log in first: skopeo login ghcr.io)
or unset KUBECONFIG to use the cluster on this machine."
        kubectl version >/dev/null || die "Nobody answers at the cluster of KUBECONFIG=$KUBECONFIG."
    fi
}
