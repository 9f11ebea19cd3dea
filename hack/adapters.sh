#!/usr/bin/env bash
# Runs the tests of the Python package's modules for agent frameworks: ours in sdk/python/tests/vendor, and the suites
# that the frameworks ship for what our classes replace. Each framework's packages are in an environment of their own,
# outside of the clone. If the versions are installed already, no registry is asked. A failure of one framework does not
# stop the others.
#
#   hack/adapters.sh [FRAMEWORK]…        without one: all of them
#
# The program `dalsegno` is that of the last build, or DALSEGNO_BIN; without one some tests are skipped. DALSEGNO_ADAPTERS
# chooses what is run: `all`; `slow`, our tests with that marker alone, which are the kills; `none`, so that the packages
# are only installed. By default the tests with the marker `slow` are left out.
source "$(dirname "$0")/lib.sh"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/dalsegno
package=$PWD/sdk/python
reruns=pytest-rerunfailures==16.7
[[ ! -x $PROGRAMS/dalsegno ]] || export DALSEGNO_BIN=${DALSEGNO_BIN:-$PROGRAMS/dalsegno}

# pinned FRAMEWORK PACKAGE: prints the version that the framework's example is pinned to.
pinned() { sed -n "s/^$2==//p" "deploy/examples/$1/requirements.txt"; }

# sources NAME PACKAGE VERSION: unpacks the package's source distribution, whose tests stay as they are, into `sources`.
sources() {
    sources=$cache/$1/$2-$3
    [[ ! -d $sources ]] || return 0
    local download
    download=$(mktemp -d)
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary "$2" --dest "$download" "$2==$3"
    tar -xzf "$download"/*.tar.gz -C "$download"
    mv "$download"/*/ "$sources"
    rm -rf "$download"
}

# types NAME: checks the module, its tests, its example and a user's code with the framework's types, in its environment.
# pyright checks the module and the user's code: tests handle JSON of unknown shape. The example has few annotations.
types() {
    [[ ${DALSEGNO_ADAPTERS:-all} = all ]] || return 0
    local example=../../deploy/examples/$1
    need_types
    (
        cd "$package"
        export MYPYPATH=src:tests:tests/contract:tests/scripted:tests/packaging:tests/crash:tests/vendor/$1:$example
        local mypy=("$python" -m mypy --config-file= --python-version 3.11 --cache-dir "$TARGET_DIR/mypy-$1")
        "${mypy[@]}" --strict "src/dalsegno/$1" "tests/vendor/$1" "tests/typing/user_$1.py"
        "${mypy[@]}" --check-untyped-defs "$example/agent.py"
        "$type_checkers/pyright" --project "tests/typing/$1.json" --pythonpath "$python"
    )
}

# ours NAME ARGUMENT…: runs our tests.
ours() {
    local chosen
    case ${DALSEGNO_ADAPTERS:-} in
        '') chosen=(-m 'not slow') ;;
        all) chosen=() ;;
        slow) chosen=(-m slow) ;;
        none) return 0 ;;
        *) die "DALSEGNO_ADAPTERS=$DALSEGNO_ADAPTERS is neither all nor slow nor none" ;;
    esac
    "$python" -m pytest -p no:cacheprovider "${chosen[@]}" "$package/tests/vendor/$1" "${@:2}"
}

# packaged EXTRA: installs the wheel with the extra into a fresh environment, and runs its guide and its example by copy
# and paste. It takes minutes, and asks the registry.
packaged() {
    [[ ${DALSEGNO_ADAPTERS:-} = all ]] || return 0
    "$python" -m pytest -p no:cacheprovider -k "$1" --durations 5 "$package/tests/packaging/test_extras.py"
}

# theirs NAME ARGUMENT…: runs tests of the vendor in `sources`, with a plugin of ours in the path. The output names those that
# were run again.
theirs() {
    [[ ${DALSEGNO_ADAPTERS:-all} = all ]] || return 0
    (cd "$sources" && PYTHONPATH=$package/src:$package/tests/contract:$package/tests/vendor/plugins:$package/tests/vendor/$1 \
        "$python" -m pytest -p no:cacheprovider -p rerun_timed -q -rR "${@:2}")
}

adapter_claude() {
    local version deselected=() test
    version=$(pinned claude claude-agent-sdk)
    venv claude mypy==2.4.1 pytest==9.2.0 $reruns 'anyio[trio]' -r deploy/examples/claude/requirements.txt
    types claude
    ours claude
    packaged claude
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
    sources claude claude-agent-sdk $version
    theirs claude -p record_store_plugin -k 'not trio' "${deselected[@]}" \
        tests/test_session_{helpers_store,import,resume,store_conformance,summary}.py tests/test_transcript_mirror.py
}

# LangGraph's own tests run with our saver in the place of its saver in memory. They import the other packages.
adapter_langgraph() {
    local version
    version=$(pinned langgraph langgraph)
    venv langgraph mypy==2.4.1 pytest==9.2.0 $reruns -r deploy/examples/langgraph/requirements.txt \
        langgraph-checkpoint-conformance==0.0.2 langgraph-checkpoint-sqlite==3.1.2 \
        langgraph-checkpoint-postgres==3.2.0 pycryptodome==4.4.0 redis==8.1.0 pytest-mock==3.17.0 syrupy==7.0.2 \
        'psycopg[binary,pool]==3.3.9'
    types langgraph
    ours langgraph
    packaged langgraph
    sources langgraph langgraph $version
    NO_DOCKER=true theirs langgraph -p langgraph_swapped -o addopts= tests
}

adapter_openai() {
    local version
    version=$(pinned openai openai-agents)
    export OPENAI_AGENTS_DISABLE_TRACING=1 # nothing is sent anywhere
    venv openai -r deploy/examples/openai/requirements.txt mypy==2.4.1 pytest==9.2.0 $reruns pytest-asyncio==1.5.0 \
        httpx==0.28.1 inline-snapshot==0.36.1
    types openai
    ours openai -p no:asyncio
    packaged openai
    # The vendor's tests of sessions and of runs, on `RecordSession`.
    sources openai openai-agents $version
    theirs openai -p openai_sessions \
        "$sources"/tests/memory/test_session*.py tests/extensions/memory/test_encrypt_session.py \
        tests/test_{tool_batch_failure_history,native_tool_failure_history,agent_runner,agent_runner_streamed,max_turns}.py \
        tests/test_{programmatic_tool_calling,run_impl_resume_paths,tool_failure_boundaries,soft_cancel}.py
}

# Pydantic AI publishes no tests of its own. The replay matrix and the pinned names are in tests/vendor/pydantic_ai.
adapter_pydantic_ai() {
    venv pydantic-ai pytest==9.2.0 mypy==2.4.1 -r deploy/examples/pydantic_ai/requirements.txt
    types pydantic_ai
    ours pydantic_ai
    packaged pydantic-ai
}

frameworks=(claude langgraph openai pydantic_ai)
(($# > 0)) || set -- "${frameworks[@]}"
failed=()
for framework in "$@"; do
    [[ " ${frameworks[*]} " = *" $framework "* ]] || die "$framework is not one of ${frameworks[*]}"
    step "$framework"
    # With `||` behind it, a function would go on after a command that fails.
    set +e
    (set -e && "adapter_$framework")
    code=$?
    set -e
    ((code == 0)) || failed+=("$framework")
done
((${#failed[@]} == 0)) || die "failed: ${failed[*]}"
