#!/usr/bin/env bash
# Everything there is to test, on a Debian machine with Go, Rust and Python; as root, since the stories need a cluster.
# Goes on after a failure, so that one run tells all. The last line is the sum over all runners; one that does not get to
# its end, or has no test, counts as a failure. KEEP_CLUSTER=1 leaves the cluster up. BUDGET=80 is what all of it may take,
# in minutes, so that there is a last line before CI's ninety are over. Logs: target/test-logs.
source "$(dirname "$0")/lib.sh"

logs=$TARGET_DIR/test-logs
passed=0 failed=0 began=$SECONDS
rm -rf "$logs"
mkdir -p "$logs"

take_down() { [[ -n ${KEEP_CLUSTER:-} ]] || cluster down; }

# A step has a process group of its own. Whoever ends this script, or its terminal, ends its step with it.
set -m
now=
stop() {
    # The terminal may be gone, and may say so twice: neither that nor a word to it keeps the cluster up.
    trap '' HUP PIPE
    echo "stopped; the rest is told in $logs/stopped.log" || true
    exec >>"$logs/stopped.log" 2>&1
    if [[ -n $now ]]; then kill "$now" || true; wait "$now" || true; fi
    take_down
    exit 130
}
trap stop HUP INT TERM

# How a runner's summary is read: lines of "passed failed", which are added.
sum() { awk '{ passed += $1; failed += $2 } END { print passed + 0, failed + 0 }'; }
count_cargo() { sed -nE 's/^test result: .* ([0-9]+) passed; ([0-9]+) failed;.*/\1 \2/p' | sum; }
count_go() { awk '/^--- PASS/ { print 1, 0 } /^--- FAIL/ { print 0, 1 }' | sum; }
count_pytest() {
    awk '/ in [0-9.]+s/ { for (i = 2; i <= NF; i++) { if ($i ~ /^passed/) print $(i - 1), 0; if ($i ~ /^(failed|error)/) print 0, $(i - 1) } }' | sum
}
count_nothing() { echo 0 0; } # a step on the way to tests

# run NAME KIND MINUTES COMMAND…: its output goes to the screen and to a log; its summary is added up.
run() {
    local name=$1 kind=$2 limit=$(($3 * 60)) log code=0 good bad start=$SECONDS
    local left=$((${BUDGET:-80} * 60 - SECONDS + began))
    shift 3
    ((limit < left)) || limit=$((left > 1 ? left : 1))
    log=$logs/${name// /-}.log
    step "$name"
    : >"$log"
    timeout --kill-after 20 "$limit" "$@" >>"$log" 2>&1 &
    now=$!
    tail --follow --lines +1 --sleep-interval 0.2 --pid "$now" "$log" &
    # A trap interrupts this, and would wait for a pipe.
    wait "$now" || code=$?
    wait $! || true
    now=
    read -r good bad < <("count_$kind" <"$log")
    ((code == 0 || bad > 0)) || bad=1
    [[ $kind = nothing ]] || ((good + bad > 0)) || { echo 'no test was run'; bad=1; }
    [[ $code != 124 && $code != 137 ]] || echo "not done after $limit s"
    passed=$((passed + good)) failed=$((failed + bad))
    echo "-- $name: $good passed, $bad failed, $((SECONDS - start)) s" | tee -a "$logs/summary"
    ((bad == 0))
}

need_languages
need_postgres
need curl curl     # the worker's contract is replayed by it
need strace strace # it sees that a commit is on the disk before it is answered
[[ $(id -u) = 0 ]] || die "The stories need the cluster on this machine, and that needs root."
unset KUBECONFIG

# pytest: the user's, or one of our own outside of the clone.
pytest=(python3 -m pytest)
if ! python3 -c 'import pytest' 2>/dev/null; then
    venv=${XDG_CACHE_HOME:-$HOME/.cache}/dalsegno/pytest
    python3 -c 'import ensurepip' 2>/dev/null || need /nowhere python3-venv
    [[ -x $venv/bin/pytest ]] || { python3 -m venv "$venv" && "$venv/bin/pip" install --quiet pytest; }
    pytest=("$venv/bin/python" -m pytest)
fi

# The builds come one after the other: each takes all cores. One build of Rust serves the tests, the images and the
# stories alike, for as long as each of these is asked of the whole workspace: a part of it has other features, and is
# compiled anew.
run 'build the cluster' nothing 25 go run -C e2e/cluster . build || true
run 'build' nothing 25 cargo build --locked --workspace --lib --bins --tests || true
run 'lint' nothing 15 hack/lint.sh || true
run 'tests in Rust' cargo 20 cargo test --locked --workspace --exclude dalsegno-e2e --no-fail-fast || true
harness=$(cargo test --locked --workspace --lib --no-run 2>&1 | sed -n 's/.*(\(.*deps.dalsegno_e2e-.*\))/\1/p') || true
run 'tests of the harness' cargo 5 "${harness:-false}" || true
run 'tests of the cluster' go 10 go test -C e2e/cluster -v ./... || true
run 'fuzz' cargo 14 hack/fuzz.sh 22 || true # four minutes over all targets
run 'tests in Python' pytest 5 "${pytest[@]}" -p no:cacheprovider sdk/python || true
run 'adapters' pytest 5 hack/adapters.sh || true

if run 'cluster' nothing 10 go run -C e2e/cluster . up && eval "$(cluster env)" &&
    run 'images' nothing 10 env SKIP_BUILD=1 hack/images.sh &&
    run 'install' nothing 5 "$PROGRAMS/e2e-setup"; then
    run 'stories' cargo 20 cargo test --locked --workspace --no-fail-fast --test stories -- --test-threads=3 || true
    run 'disasters' cargo 25 cargo test --locked --workspace --no-fail-fast --test disasters -- --test-threads=1 || true
else
    echo 'the stories could not be told' | tee -a "$logs/summary"
fi
take_down || failed=$((failed + 1))

step "Summary after $((SECONDS - began)) s"
cat "$logs/summary"
echo "$passed passed, $failed failed"
((failed == 0))
