#!/usr/bin/env bash
# Runs all tests, on a Debian machine with Go, Rust and Python, as root because the end-to-end tests need a cluster.
#
# It continues after a failure, so that one run shows all of them. The last line is the sum over all test runners. A
# runner that does not end, or that has no test, counts as one failure.
#
# KEEP_CLUSTER=1 leaves the cluster up. BUDGET (default 86) is the limit for everything, in minutes: CI ends the script
# after 90 minutes, and the last line must be printed before. The logs of the steps are in target/test-logs.
source "$(dirname "$0")/lib.sh"

logs=$TARGET_DIR/test-logs
passed=0 failed=0 began=$SECONDS
rm -rf "$logs"
mkdir -p "$logs"

take_down() { [[ -n ${KEEP_CLUSTER:-} ]] || cluster down; }

# Each step has a process group of its own. If this script or its terminal ends, the steps are ended too.
set -m
declare -A pids=() starts=() codes=()
stop() {
    # The terminal may be gone. A hang-up or a failed write must not keep the cluster up.
    trap '' HUP PIPE
    echo "stopped; the rest of the output is in $logs/stopped.log" || true
    exec >>"$logs/stopped.log" 2>&1
    local pid
    for pid in "${pids[@]}"; do kill "$pid" || true; done
    for pid in "${pids[@]}"; do wait "$pid" || true; done
    take_down
    exit 130
}
trap stop HUP INT TERM

# Reading the summary of a runner: each count_KIND prints "passed failed".
sum() { awk '{ passed += $1; failed += $2 } END { print passed + 0, failed + 0 }'; }
count_cargo() { sed -nE 's/^test result: .* ([0-9]+) passed; ([0-9]+) failed;.*/\1 \2/p' | sum; }
count_go() { awk '/^--- PASS/ { print 1, 0 } /^--- FAIL/ { print 0, 1 }' | sum; }
count_pytest() {
    # A log may have several summaries, with `=` around them or without: "2 failed, 5 passed, 1 xfailed in 61.0s (0:01:01)".
    sed -nE 's/^(=+ )?([0-9]+ [a-z ]+(, [0-9]+ [a-z ]+)*) in [0-9.]+s( \(.*\))?( =+)?$/\2/p' | tr ',' '\n' |
        awk '$2 == "passed" { print $1, 0 } $2 ~ /^(failed|errors?)$/ { print 0, $1 }' | sum
}
count_any_pytest() { count_pytest; } # for a step that may find nothing to test with
count_nothing() { echo 0 0; } # for a step without tests

log_of() { echo "$logs/${1// /-}.log"; }

# start NAME MINUTES COMMAND…: starts a step. Its output goes to its log only.
apart=()
start() {
    local name=$1 limit=$(($2 * 60)) left=$((${BUDGET:-86} * 60 - SECONDS + began))
    shift 2
    ((limit < left)) || limit=$((left > 1 ? left : 1))
    : >"$(log_of "$name")"
    "${apart[@]}" timeout --kill-after 20 "$limit" "$@" >>"$(log_of "$name")" 2>&1 &
    pids[$name]=$! starts[$name]=$SECONDS
}

# background NAME MINUTES COMMAND…: starts a step that runs at the same time as the next ones. It uses only the
# processor time that they leave. Linux may share the processors among sessions first, each with a priority of its own,
# and `nice` counts only inside a session. So the step gets a session with the lowest priority.
background() {
    local apart=(setsid bash -c 'echo 19 2>/dev/null >/proc/self/autogroup; exec nice -n 19 ionice -c 3 "$@"' bash)
    set +m # `setsid` starts a second process, whose id is unknown here, if it leads a process group
    start "$@"
    set -m
}

# await NAME: waits for a step. A trap interrupts this `wait`, but would have to wait for a program in the foreground.
await() {
    codes[$1]=0
    wait "${pids[$1]}" || codes[$1]=$?
    unset "pids[$1]"
}

# add_up NAME KIND: adds the summary of a step that has ended. Fails if the step failed.
add_up() {
    local name=$1 kind=$2 code=${codes[$1]} good bad
    read -r good bad < <("count_$kind" <"$(log_of "$name")")
    ((code == 0 || bad > 0)) || bad=1
    [[ $kind = nothing || $kind = any_pytest ]] || ((good + bad > 0)) || { echo 'no test was run'; bad=1; }
    [[ $code != 124 && $code != 137 ]] || echo "$name did not end in time"
    passed=$((passed + good)) failed=$((failed + bad))
    echo "-- $name: $good passed, $bad failed, $((SECONDS - starts[$name])) s" | tee -a "$logs/summary"
    ((bad == 0))
}

# run NAME KIND MINUTES COMMAND…: runs a step. Its output goes to the screen and to its log.
run() {
    local name=$1 kind=$2 minutes=$3 tail
    shift 3
    step "$name"
    start "$name" "$minutes" "$@"
    tail --follow --lines +1 --sleep-interval 0.2 --pid "${pids[$name]}" "$(log_of "$name")" &
    tail=$!
    await "$name"
    wait "$tail" || true
    add_up "$name" "$kind"
}

# finish NAME KIND: waits for a background step and prints its output.
finish() {
    step "$1 (in the background until now)"
    await "$1"
    cat "$(log_of "$1")"
    add_up "$@"
}

need_languages
need_postgres
need curl curl     # some tests replay the worker's contract with it
need strace strace # a test checks with it that a commit is on the disk before it is answered
[[ $(id -u) = 0 ]] || die "The end-to-end tests need the cluster on this machine, and that needs root."
unset KUBECONFIG

need_pytest

# timed CARGO-TEST-ARGUMENT…: runs tests that print how long each of them took. The option is for nightly compilers; the
# variable makes the harness of a stable one accept it, and is set for the tests alone, since it would change the build.
timed() {
    CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER='env RUSTC_BOOTSTRAP=1' \
        cargo test --locked --workspace --no-fail-fast "$@" -Z unstable-options --report-time
}
export -f timed

# program_of NAME CARGO-TEST-ARGUMENT…: the program with these tests. It is started without Cargo, which would wait for
# the Cargo of a step in the background.
program_of() {
    local name=$1 program
    shift
    program=$(cargo test --locked --workspace --no-run "$@" 2>&1 | sed -n "s/.*(\(.*deps.$name-.*\))/\1/p") || true
    readlink -f "${program:-no program $name}"
}

# end_to_end PROGRAM ARGUMENT…: runs end-to-end tests that print how long each of them took.
end_to_end() { cd e2e && RUSTC_BOOTSTRAP=1 CARGO_MANIFEST_DIR=$PWD "$@" -Z unstable-options --report-time; }
export -f end_to_end

# The builds run one after the other, because each uses all cores. One build of Rust serves the tests, the images and
# the end-to-end tests, as long as every command names the whole workspace. For a part of it Cargo would choose other
# features and compile anew.
run 'build the cluster' nothing 25 go run -C e2e/cluster . build || true
run 'build' nothing 25 cargo build --locked --workspace --lib --bins --tests || true
# Most of these tests wait for a database, so more of them run at a time than there are processors.
run 'tests in Rust' cargo 28 env RUST_TEST_THREADS=$(($(nproc) * 3 / 2)) bash -c "timed --exclude dalsegno-e2e --lib --bins --tests --" || true
run 'examples in the documentation' cargo 5 cargo test --locked --workspace --doc || true
run 'tests of the harness' cargo 5 "$(program_of dalsegno_e2e --lib)" || true
run 'tests of the cluster' go 10 go test -C e2e/cluster -v ./... || true
# These wait most of the time.
run 'tests in Python' pytest 10 env DALSEGNO_BIN="$PROGRAMS/dalsegno" "${pytest[@]}" -p no:cacheprovider \
    -n $(($(nproc) * 2)) --dist loadfile -m 'not slow' sdk/python || true

scenarios=$(program_of scenarios --test scenarios) chaos=$(program_of chaos --test chaos)
examples=$(program_of examples --test examples)

# last_steps: starts what no test waits for.
last_steps() {
    background 'lint' 45 hack/lint.sh
    background 'other Pythons' 45 hack/pythons.sh
}

# The end-to-end tests wait most of the time. So the fuzz targets, which are a build of their own, are built and run at the
# same time, 22 s each, and so are the tests of the adapters, and lint. They use only the processor time that is left.
background 'fuzz' 60 hack/fuzz.sh 22
background 'adapters' 60 hack/adapters.sh
if run 'cluster' nothing 10 go run -C e2e/cluster . up && eval "$(cluster env)" &&
    run 'images' nothing 10 env SKIP_BUILD=1 hack/images.sh &&
    run 'install' nothing 5 "$PROGRAMS/e2e-setup"; then
    # Only the tests after the scenarios need them. They hold the packages of agent frameworks, so they take minutes.
    background 'images of the examples' 30 env SKIP_BUILD=1 hack/images.sh all
    left_out=(--skip upgrade::runs_on_the_embedded_store) # `make upgrade` runs it too
    if has_previous; then
        # Only the last tests need it.
        background 'previous version' 30 hack/previous.sh
    else
        left_out=(--skip upgrade::)
        echo '-- left out: the test of an upgrade, since this clone does not have the previous version' | tee -a "$logs/summary"
    fi
    run 'scenarios' cargo 20 bash -c 'end_to_end "$@"' bash "$scenarios" --test-threads=3 || true
    finish 'images of the examples' nothing || true
    run 'examples' cargo 8 bash -c 'end_to_end "$@"' bash "$examples" --test-threads=4 || true
    ! has_previous || finish 'previous version' nothing || true
    last_steps
    run 'chaos' cargo 52 bash -c 'end_to_end "$@"' bash "$chaos" --test-threads=1 "${left_out[@]}" || true
else
    last_steps
    echo 'the end-to-end tests could not run' | tee -a "$logs/summary"
fi
finish 'fuzz' cargo || true
finish 'adapters' pytest || true
finish 'other Pythons' any_pytest || true
finish 'lint' nothing || true
take_down || failed=$((failed + 1))

step 'The twenty slowest tests'
sed -nE 's/^test (.*) \.\.\. [a-zA-Z]+ <([0-9.]+)s>$/\2 s  \1/p' "$logs"/*.log | sort -rn | sed -n 1,20p

step "Summary after $((SECONDS - began)) s"
cat "$logs/summary"
echo "$passed passed, $failed failed"
((failed == 0))
