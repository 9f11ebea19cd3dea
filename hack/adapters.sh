#!/usr/bin/env bash
# Runs the test suites that agent frameworks ship for their stores, against a gateway on SQLite. The frameworks'
# packages are in an environment of their own, outside of the clone. It needs the gateway's example `serve`, which the
# tests in Rust build.
source "$(dirname "$0")/lib.sh"

venv=${XDG_CACHE_HOME:-$HOME/.cache}/dalsegno/adapters
python3 -c 'import ensurepip' 2>/dev/null || need /nowhere python3-venv
[[ -x $venv/bin/pip ]] || python3 -m venv "$venv"
# If these versions are installed already, no registry is asked.
"$venv/bin/pip" install --quiet --disable-pip-version-check pytest langgraph-checkpoint-conformance==0.0.2 claude-agent-sdk==0.2.187
export DALSEGNO_SERVE=$PROGRAMS/examples/serve
[[ -x $DALSEGNO_SERVE ]] || cargo build --locked --package dalsegno-gateway --example serve
exec "$venv/bin/python" -m pytest -p no:cacheprovider sdk/python/tests/adapters
