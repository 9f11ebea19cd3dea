#!/usr/bin/env bash
# Starts or stops the cluster on this machine: `hack/cluster.sh up`, `hack/cluster.sh down`. See e2e/cluster/README.md.
source "$(dirname "$0")/lib.sh"

command -v go >/dev/null || die "Please install Go 1.26 or later."
[[ $(id -u) = 0 ]] || die "The cluster on this machine needs root."
need ip iproute2 curl curl
cluster "${1:?up or down}"
