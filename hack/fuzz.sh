#!/usr/bin/env bash
# Looks for bytes that break a decoder, guided by coverage, starting from the corpus in operator/fuzz/corpus.
#
#   hack/fuzz.sh SECONDS [TARGET…]   runs each target for this time
#   hack/fuzz.sh build               builds the targets only
#
# Input that breaks a decoder is kept in target/fuzz/found. Add it to the corpus together with the fix.
source "$(dirname "$0")/lib.sh"

seconds=${1:-300}
shift || true
targets=("$@")
# Each file with a fuzz_target! is a target. Cargo.toml must list the same ones under the same names.
files=$(grep -l 'fuzz_target!' operator/fuzz/targets/*.rs | xargs -n 1 basename -s .rs | sort)
known=$(grep -A2 -Fx '[[bin]]' operator/fuzz/Cargo.toml | sed -n 's/^\(name\|path\) = "\(.*\)"$/\2/p' | paste -d' ' - - | sort)
[[ $known = "$(awk '{ print $0 " targets/" $0 ".rs" }' <<<"$files")" ]] ||
    die "operator/fuzz/Cargo.toml and operator/fuzz/targets do not have the same targets:"$'\n'"$known"
((${#targets[@]} > 0)) || mapfile -t targets <<<"$files"

# check_fuzzed LOG: fails if no coverage guided the run, or if it tried no input beyond the corpus.
check_fuzzed() {
    local counters='^INFO: Loaded [0-9]+ modules +\([1-9][0-9]* inline 8-bit counters\)' corpus all
    grep -qE "$counters" "$1" || { echo 'without coverage' >>"$1"; return 1; }
    corpus=$(sed -n 's/^#\([0-9]*\)\tINITED .*/\1/p' "$1")
    all=$(sed -n 's/^stat::number_of_executed_units: *//p' "$1")
    ((all > ${corpus:-all})) || { echo 'no input beyond the corpus' >>"$1"; return 1; }
}

need_languages
need c++ g++
export RUSTC_WRAPPER=$PWD/hack/rustc-with-coverage.sh RUSTFLAGS='--cfg fuzzing'
export CARGO_TARGET_DIR=$TARGET_DIR/fuzz
host=$(rustc -vV | sed -n 's/^host: //p')
cargo build --locked --release --manifest-path operator/fuzz/Cargo.toml --target "$host" --bins
[[ $seconds != build ]] || exit 0

broken=0
for target in "${targets[@]}"; do
    found=$CARGO_TARGET_DIR/found/$target
    mkdir -p "$found/corpus"
    if TMPDIR=$found "$CARGO_TARGET_DIR/$host/release/$target" -max_total_time="$seconds" -max_len=65536 -timeout=10 -rss_limit_mb=1024 \
        -print_final_stats=1 -artifact_prefix="$found/" "$found/corpus" "operator/fuzz/corpus/$target" >"$found/log" 2>&1 &&
        check_fuzzed "$found/log"; then
        echo "test $target ... ok ($(sed -n 's/^stat::number_of_executed_units: *//p' "$found/log") inputs)"
    else
        echo "test $target ... FAILED"
        tail -40 "$found/log"
        broken=$((broken + 1))
    fi
done
echo "test result: $( ((broken == 0)) && echo ok || echo FAILED). $((${#targets[@]} - broken)) passed; $broken failed; in $seconds s each"
((broken == 0))
