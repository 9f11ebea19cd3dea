#!/usr/bin/env bash
# Runs the unit tests of the Python package and those of the contract, with the gateway in memory, on each Python from
# 3.10 to 3.14 that this machine has and that is not its `python3`, which hack/test.sh tests in full. It says which
# versions are not there. A Python is found in the path, or as pyenv and uv install it, if it can make an environment.
source "$(dirname "$0")/lib.sh"

unset DALSEGNO_BIN # the gateway in memory is enough: a real one does not depend on the Python
own=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')

# find_python VERSION: prints the path of a Python of this version.
find_python() {
    local candidate version='import ensurepip, sys; print("%d.%d" % sys.version_info[:2])'
    for candidate in "$(command -v "python$1" || true)" \
        "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/python \
        "${XDG_DATA_HOME:-$HOME/.local/share}"/uv/python/cpython-"$1".*/bin/python3; do
        # A shim of pyenv is there for each version, and fails for those that are not chosen.
        # Debian's Pythons have no ensurepip of their own.
        if [[ -x $candidate ]] && [[ $("$candidate" -c "$version" 2>/dev/null) = "$1" ]]; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

failed=() skipped=()
for version in 3.10 3.11 3.12 3.13 3.14; do
    [[ $version != "$own" ]] || continue
    if ! python=$(find_python "$version"); then
        skipped+=("$version")
        continue
    fi
    step "Python $version: $python"
    BASE_PYTHON=$python venv "pytest-$version" pytest==9.2.0
    "$python" -m pytest -p no:cacheprovider -q sdk/python/tests/{unit,contract} || failed+=("$version")
done
((${#skipped[@]} == 0)) || echo "SKIPPED: this machine has no Python ${skipped[*]}"
((${#failed[@]} == 0)) || die "failed: Python ${failed[*]}"
