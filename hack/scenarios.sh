#!/usr/bin/env bash
# Some of the stories, on a cluster that stays up: `hack/stories.sh stories evicted`, `hack/stories.sh disasters nodes`. A
# part of a story's name is enough; without one all of them are told. What has changed is built and installed first.
source "$(dirname "$0")/lib.sh"

kind=${1:?stories, which run side by side, or disasters, one after the other}
shift
threads=3
[[ $kind != disasters ]] || threads=1

need_languages
need_postgres
unset KUBECONFIG # the stories break machines, so it is our own cluster
use_cluster
step 'Building everything'
cargo build --locked --workspace --lib --bins --tests
SKIP_BUILD=1 hack/images.sh
step 'Installing what the stories need'
"$PROGRAMS/e2e-setup"
cargo test --locked --workspace --test "$kind" -- --test-threads="$threads" "$@"
