#!/usr/bin/env bash
# Runs the tests of the Python package's modules for agent frameworks, and the suites that the frameworks ship. Each
# framework's packages are in an environment of their own, outside of the clone. The tests use the program `dalsegno` and
# the gateway's example `serve`, which the tests in Rust build.
#
#   hack/adapters.sh [FRAMEWORK]…        without one: all of them
source "$(dirname "$0")/lib.sh"

cache=${XDG_CACHE_HOME:-$HOME/.cache}/dalsegno
[[ -n ${DALSEGNO_BIN:-} || ! -x $PROGRAMS/dalsegno ]] || export DALSEGNO_BIN=$PROGRAMS/dalsegno
python3 -c 'import ensurepip' 2>/dev/null || need /nowhere python3-venv

# environment NAME PACKAGE…: makes an environment, and `python` a path to its Python. If these versions are installed
# already, no registry is asked.
environment() {
    python=$cache/$1/bin/python
    [[ -x $cache/$1/bin/pip ]] || python3 -m venv "$cache/$1"
    "$python" -m pip install --quiet --disable-pip-version-check "${@:2}"
}

claude() {
    environment adapters pytest claude-agent-sdk==0.2.187
    export DALSEGNO_SERVE=$PROGRAMS/examples/serve
    [[ -x $DALSEGNO_SERVE ]] || cargo build --locked --package dalsegno-gateway --example serve
    "$python" -m pytest -p no:cacheprovider sdk/python/tests/adapters
}

# Our tests, with LangGraph's conformance suite of savers. Then LangGraph's own tests from its source distribution, with
# our saver in the place of its saver in memory. The other packages are what its tests import.
langgraph() {
    local version=1.2.24 sources=$cache/langgraph-sources
    environment langgraph pytest==9.2.0 langgraph==$version langgraph-checkpoint==4.3.2 \
        langgraph-checkpoint-conformance==0.0.2 langchain-openai==1.7.4 langgraph-checkpoint-sqlite==3.1.2 \
        langgraph-checkpoint-postgres==3.2.0 pycryptodome==4.4.0 redis==8.1.0 pytest-mock==3.17.0 syrupy==7.0.2 \
        'psycopg[binary,pool]==3.3.9'
    "$python" -m pytest -p no:cacheprovider sdk/python/tests/vendor/langgraph
    if [[ ! -d $sources/langgraph-$version ]]; then
        "$python" -m pip download --quiet --no-deps --no-binary langgraph --dest "$sources" langgraph==$version
        tar --extract --gzip --file "$sources/langgraph-$version.tar.gz" --directory "$sources"
    fi
    local package=$PWD/sdk/python
    (cd "$sources/langgraph-$version" &&
        NO_DOCKER=true PYTHONPATH=$package/src:$package/tests/vendor/langgraph \
            "$python" -m pytest --quiet -p no:cacheprovider -p langgraph_swapped -o addopts= tests)
}

(($# > 0)) || set -- claude langgraph
for framework in "$@"; do
    step "$framework"
    "$framework"
done
