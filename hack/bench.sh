#!/usr/bin/env bash
# Measures the figures of docs/reference/performance.md, as ratios to a floor that is measured in the same run. Without arguments
# it runs all benches but scale, parked, ramp and overhead, which take long, and langgraph: boundary turns sizing slow reaction
# quiet memory lives. The tables of sizing are in docs/reference/sizing.md.
source "$(dirname "$0")/lib.sh"

wanted=" ${*:-boundary turns sizing slow reaction quiet memory lives} "
is_wanted() { [[ $wanted = *" $1 "* ]]; }

need_languages
need openssl openssl
if ! compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null; then
    need pg_createcluster postgresql-common
    sed -i 's/^#\?create_main_cluster.*/create_main_cluster = false/' /etc/postgresql-common/createcluster.conf
    need postgres postgresql
fi

step 'Building for release (about 8 minutes the first time)'
build=(cargo build --locked --release --package dalsegno --package dalsegno-store --package dalsegno-gateway
    --package dalsegno-e2e --bin dalsegno --bench boundary --bench turns --bench sizing --bench operator)
"${build[@]}"
# program NAME: prints the path of the program that cargo has built.
program() {
    "${build[@]}" --quiet --message-format=json | python3 -c '
import json, sys
lines = map(json.loads, sys.stdin)
found = {line["target"]["name"]: line["executable"] for line in lines if line.get("executable")}
print(found[sys.argv[1]])' "$1"
}
operator_bench=$(program operator)
DALSEGNO_PROGRAM=$(program dalsegno)
export DALSEGNO_PROGRAM

if is_wanted boundary || is_wanted turns || is_wanted slow; then
    # LangGraph's saver, in an environment of its own, outside of the clone.
    venv langgraph langgraph-checkpoint-postgres==3.2.0 'psycopg[binary,pool]==3.3.9'
    export DALSEGNO_BENCH_PYTHON=$python
fi

if is_wanted boundary; then
    step 'Boundary commits'
    "$(program boundary)"
fi

if is_wanted turns; then
    step 'Many turns'
    "$(program turns)"
fi

if is_wanted sizing; then
    step 'Bytes per turn and per run'
    "$(program sizing)"
fi

if is_wanted slow; then
    need strace strace
    # Every fdatasync and fsync, of PostgreSQL and of SQLite, returns 5 ms later.
    for bench in boundary turns; do
        step "$bench again, on a disk that takes 5 ms longer to sync"
        strace -f --seccomp-bpf -o /dev/null -e trace=fdatasync,fsync -e inject=fdatasync,fsync:delay_exit=5000 \
            "$(program "$bench")"
    done
fi

if is_wanted overhead; then
    step 'Turns of one second: each framework with and without Dal Segno'
    DALSEGNO_ADAPTERS=none hack/adapters.sh
    # One pair after the other: ten agents would disturb each other on a small machine.
    for framework in plain langgraph claude openai pydantic_ai; do
        python=${XDG_CACHE_HOME:-$HOME/.cache}/dalsegno/${framework/_/-}/bin/python
        [[ $framework != plain ]] || python=python3
        PYTHONPATH=sdk/python/src "$python" sdk/python/benches/overhead.py "$framework"
    done
fi

# These benches need no containers: they use a control plane of their own with fake nodes.
fake_node_benches=()
for name in reaction quiet memory scale ramp parked; do ! is_wanted "$name" || fake_node_benches+=("$name"); done
if ((${#fake_node_benches[@]} > 0)) || is_wanted langgraph; then
    kube=$(cluster build kube | grep -o '/.*/kube$')
    kwok=$(cluster build kwok | grep -o '/.*/kwok$')
    stages=$(mktemp)
    trap 'rm -f "$stages"' EXIT
    source=$(go list -C e2e/cluster/kwok -m -f '{{.Dir}}' sigs.k8s.io/kwok)/kustomize/stage
    for stage in node/fast/node-initialize node/heartbeat-with-lease/node-heartbeat-with-lease pod/fast/pod-{ready,delete}; do
        cat "$source/$stage.yaml"
        echo ---
    done >"$stages"
    on_fake_nodes() { e2e/benches/with-control-plane.sh "$kube" "$kwok" "$stages" "$@"; }
fi

if ((${#fake_node_benches[@]} > 0)); then
    step "On a control plane with fake nodes: ${fake_node_benches[*]}"
    on_fake_nodes "$operator_bench" "${fake_node_benches[@]}"
fi

if is_wanted langgraph; then
    # The benchmark is the vendor's, from the sources of its tests. Nothing of it is copied here.
    DALSEGNO_ADAPTERS=none hack/adapters.sh langgraph
    vendor=${XDG_CACHE_HOME:-$HOME/.cache}/dalsegno/langgraph
    benchmark=$(compgen -G "$vendor/langgraph-*/tests/test_delta_channel_benchmark.py" | sort -V | tail -1)
    need_postgres
    step "LangGraph's own benchmark, on one PostgreSQL server"
    PYTHONPATH=$PWD/sdk/python/src:$PWD/sdk/python/tests/vendor/langgraph on_fake_nodes "$vendor/bin/python" e2e/benches/langgraph/bench.py "$benchmark"
fi

if is_wanted lives; then
    step 'Lives on the real cluster'
    use_cluster
    if ! kubectl --namespace dalsegno-system get deployment dalsegno >/dev/null 2>&1; then
        hack/images.sh
        cargo run --locked --quiet --package dalsegno-e2e --bin e2e-setup
    fi
    "$operator_bench" lives
fi
