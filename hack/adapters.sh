#!/usr/bin/env bash
# Runs the tests of what agent frameworks need: the suites that they ship for their stores, against a gateway on SQLite,
# and ours of `dalsegno.openai`. Each framework's packages are in an environment of its own, outside of the clone. It needs
# the gateway's example `serve`, which the tests in Rust build. Without the program `dalsegno` some tests are skipped.
source "$(dirname "$0")/lib.sh"

environments=${XDG_CACHE_HOME:-$HOME/.cache}/dalsegno
failed=0
python3 -c 'import ensurepip' 2>/dev/null || need /nowhere python3-venv

# environment NAME PACKAGE…: makes an environment with these packages. If they are installed already, no registry is asked.
environment() {
    local venv=$environments/$1
    shift
    [[ -x $venv/bin/pip ]] || python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check "$@"
}

# source_of NAME PACKAGE VERSION: downloads the source distribution of a package, once, and prints its directory.
source_of() {
    local directory=$environments/$1-source/${2//-/_}-$3
    if [[ ! -d $directory ]]; then
        mkdir -p "$environments/$1-source"
        "$environments/$1/bin/pip" download --quiet --disable-pip-version-check --no-deps --no-binary "$2" \
            --dest "$environments/$1-source" "$2==$3" >&2
        tar -xzf "$directory.tar.gz" -C "$environments/$1-source"
    fi
    echo "$directory"
}

export DALSEGNO_SERVE=$PROGRAMS/examples/serve
[[ -x $DALSEGNO_SERVE ]] || cargo build --locked --package dalsegno-gateway --example serve
if [[ -x $PROGRAMS/dalsegno ]]; then export DALSEGNO_BIN=${DALSEGNO_BIN:-$PROGRAMS/dalsegno}; fi
export OPENAI_AGENTS_DISABLE_TRACING=1 # nothing is sent anywhere

environment adapters pytest langgraph-checkpoint-conformance==0.0.2 claude-agent-sdk==0.2.187
"$environments/adapters/bin/python" -m pytest -p no:cacheprovider sdk/python/tests/adapters || failed=1

# The OpenAI Agents SDK: types with the vendor's, our tests, and the vendor's own tests of sessions on `RecordSession`.
openai_agents() {
    local version=0.24.0 source tests=$PWD/sdk/python/tests python=$environments/openai/bin/python
    environment openai openai-agents==$version mypy==2.4.1 pytest==9.2.0 pytest-asyncio==1.5.0 httpx==0.28.1 inline-snapshot==0.36.1
    (cd sdk/python && "$python" -m mypy --config-file= --strict --python-version 3.10 --cache-dir "$TARGET_DIR/mypy-openai" \
        src/dalsegno/openai) || return 1
    "$python" -m pytest -p no:cacheprovider -p no:asyncio sdk/python/tests/vendor/openai || return 1
    source=$(source_of openai openai-agents $version) || return 1
    cd "$source" || return 1
    PYTHONPATH=$tests/../src:$tests/contract:$tests/vendor/openai "$python" -m pytest -p no:cacheprovider -p openai_sessions -q \
        tests/memory/test_session*.py tests/extensions/memory/test_encrypt_session.py \
        tests/test_{tool_batch_failure_history,native_tool_failure_history,agent_runner,agent_runner_streamed,max_turns}.py \
        tests/test_{programmatic_tool_calling,run_impl_resume_paths,tool_failure_boundaries,soft_cancel}.py
}
(openai_agents) || failed=1
exit $failed
