#!/usr/bin/env bash
# Runs the tests of the adapters for agent frameworks, and the test suites that the frameworks ship for their stores. Each
# framework's packages are in an environment of their own, outside of the clone. The suites of the stores need the gateway's
# example `serve`, which the tests in Rust build. If the versions are installed already, no registry is asked.
#
#   hack/adapters.sh [pydantic_ai | stores]…      all of them without an argument
source "$(dirname "$0")/lib.sh"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/dalsegno

# environment NAME PACKAGE…: makes or updates the environment, and sets `python` to its Python.
environment() {
    python3 -c 'import ensurepip' 2>/dev/null || need /nowhere python3-venv
    [[ -x $cache/$1/bin/pip ]] || python3 -m venv "$cache/$1"
    python=$cache/$1/bin/python
    "$python" -m pip install --quiet --disable-pip-version-check "${@:2}"
}

# Pydantic AI publishes no tests of its own. The replay matrix and the pinned names are in tests/vendor/pydantic_ai.
pydantic_ai() {
    environment pydantic-ai pytest==9.2.0 mypy==2.4.1 'pydantic-ai-slim[openai]==2.68.0'
    [[ ! -x $PROGRAMS/dalsegno ]] || export DALSEGNO_BIN=${DALSEGNO_BIN:-$PROGRAMS/dalsegno}
    (cd sdk/python && "$python" -m mypy --cache-dir "$TARGET_DIR/mypy-pydantic-ai" \
        src/dalsegno/pydantic_ai/*.py tests/vendor/pydantic_ai/{*,agents/*}.py)
    "$python" -m pytest -p no:cacheprovider sdk/python/tests/vendor/pydantic_ai
}

stores() {
    environment adapters pytest langgraph-checkpoint-conformance==0.0.2 claude-agent-sdk==0.2.187
    export DALSEGNO_SERVE=$PROGRAMS/examples/serve
    [[ -x $DALSEGNO_SERVE ]] || cargo build --locked --package dalsegno-gateway --example serve
    "$python" -m pytest -p no:cacheprovider sdk/python/tests/adapters
}

(($# > 0)) || set -- pydantic_ai stores
for suite in "$@"; do
    step "$suite"
    "$suite"
done
