#!/usr/bin/env bash
# Runs the tests of the Python package's modules for agent frameworks, and the test suites that the frameworks ship. Each
# framework's packages are in an environment of their own, outside of the clone. The tests use the program `dalsegno`, which
# the tests in Rust build. If the versions are installed already, no registry is asked.
#
#   hack/adapters.sh [FRAMEWORK]…        without one: all of them
source "$(dirname "$0")/lib.sh"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/dalsegno
[[ -n ${DALSEGNO_BIN:-} || ! -x $PROGRAMS/dalsegno ]] || export DALSEGNO_BIN=$PROGRAMS/dalsegno

# environment NAME PACKAGE…: makes or updates the environment, and sets `python` to its Python.
environment() {
    python3 -c 'import ensurepip' 2>/dev/null || need /nowhere python3-venv
    [[ -x $cache/$1/bin/pip ]] || python3 -m venv "$cache/$1"
    python=$cache/$1/bin/python
    "$python" -m pip install --quiet --disable-pip-version-check "${@:2}"
}

# sources NAME PACKAGE VERSION: unpacks the package's source distribution, whose tests stay as they are, into `sources`.
sources() {
    sources=$cache/$1/$2-$3
    [[ -d $sources ]] && return
    local download
    download=$(mktemp -d)
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary "$2" --dest "$download" "$2==$3"
    tar -xzf "$download"/*.tar.gz -C "$download"
    mv "$download"/*/ "$sources"
    rm -rf "$download"
}

claude() {
    local version=0.2.188 deselected=() test
    environment claude pytest==9.2.0 'anyio[trio]' claude-agent-sdk==$version
    "$python" -m pytest -p no:cacheprovider sdk/python/tests/vendor/claude
    sources claude claude-agent-sdk $version
    # The reasons are in docs/guides/claude.md.
    for test in \
        test_session_helpers_store.py::TestListSessionsFromStore::test_load_concurrency_is_bounded \
        test_session_resume.py::TestHappyPath::test_continue_picks_most_recent \
        test_session_resume.py::TestHappyPath::test_continue_skips_sidechain_sessions \
        test_session_resume.py::TestHappyPath::test_continue_tie_break_is_deterministic \
        test_session_resume.py::TestTimeoutsAndErrors::test_cancelled_after_mkdtemp_cleans_temp_dir \
        test_session_summary.py::TestListSessionsFromStoreFastPath::test_gap_fill_bounded_concurrency \
        test_transcript_mirror.py::TestReceiveLoopFramePeeling::test_eager_flush_mode_appends_per_frame_before_result; do
        deselected+=(--deselect "tests/$test")
    done
    (
        export PYTHONPATH=$PWD/sdk/python/src:$PWD/sdk/python/tests/vendor/claude
        cd "$sources"
        "$python" -m pytest -p no:cacheprovider -p record_store_plugin -k 'not trio' "${deselected[@]}" \
            tests/test_session_{helpers_store,import,resume,store_conformance,summary}.py tests/test_transcript_mirror.py
    )
}

# Our tests, with LangGraph's conformance suite of savers. Then LangGraph's own tests from its source distribution, with
# our saver in the place of its saver in memory. The other packages are what its tests import.
langgraph() {
    local version=1.2.24 package=$PWD/sdk/python
    environment langgraph pytest==9.2.0 langgraph==$version langgraph-checkpoint==4.3.2 \
        langgraph-checkpoint-conformance==0.0.2 langchain-openai==1.7.4 langgraph-checkpoint-sqlite==3.1.2 \
        langgraph-checkpoint-postgres==3.2.0 pycryptodome==4.4.0 redis==8.1.0 pytest-mock==3.17.0 syrupy==7.0.2 \
        'psycopg[binary,pool]==3.3.9'
    "$python" -m pytest -p no:cacheprovider sdk/python/tests/vendor/langgraph
    sources langgraph langgraph $version
    (cd "$sources" &&
        NO_DOCKER=true PYTHONPATH=$package/src:$package/tests/vendor/langgraph \
            "$python" -m pytest --quiet -p no:cacheprovider -p langgraph_swapped -o addopts= tests)
}

(($# > 0)) || set -- claude langgraph
for framework in "$@"; do
    step "$framework"
    "$framework"
done
