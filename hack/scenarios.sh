#!/usr/bin/env bash
# Runs some end-to-end tests on a cluster that stays up: `hack/scenarios.sh scenarios evicted`, `hack/scenarios.sh chaos
# nodes`, `hack/scenarios.sh examples`. The second argument is a part of the tests' names; without it all of them run.
# What has changed is built and installed first.
source "$(dirname "$0")/lib.sh"

target=${1:?scenarios or examples, which run in parallel, or chaos, one after the other}
shift
threads=3 images=()
[[ $target != chaos ]] || threads=1
[[ $target != chaos ]] || images+=(dbos)
[[ $target != examples ]] || threads=4 images=(all)

need_languages
need_postgres
unset KUBECONFIG # the tests break machines, so they need the cluster on this machine
use_cluster
step 'Building everything'
cargo build --locked --workspace --lib --bins --tests
SKIP_BUILD=1 hack/images.sh "${images[@]}"
# Without a name all tests run, and some of them upgrade.
[[ $target != chaos || ($# -gt 0 && $* != *upgrade*) ]] || hack/previous.sh
step 'Installing what the tests need'
"$PROGRAMS/e2e-setup"
cargo test --locked --workspace --test "$target" -- --test-threads="$threads" "$@"
