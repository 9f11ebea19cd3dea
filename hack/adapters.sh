#!/usr/bin/env bash
# What frameworks for agents say of our records: the suites that they ship, run against a gateway on SQLite. Their
# packages live in an environment of their own, outside of the clone. Needs the example `serve` of the gateway, which
# the tests in Rust have built.
source "$(dirname "$0")/lib.sh"

venv=${XDG_CACHE_HOME:-$HOME/.cache}/dalsegno/adapters
python3 -c 'import ensurepip' 2>/dev/null || need /nowhere python3-venv
[[ -x $venv/bin/pip ]] || python3 -m venv "$venv"
# Where they are there, of these versions, it asks nobody.
"$venv/bin/pip" install --quiet --disable-pip-version-check pytest langgraph-checkpoint-conformance==0.0.2 claude-agent-sdk==0.2.187
export DALSEGNO_SERVE=$PROGRAMS/examples/serve
[[ -x $DALSEGNO_SERVE ]] || cargo build --locked --package dalsegno-gateway --example serve
exec "$venv/bin/python" -m pytest -p no:cacheprovider sdk/python/tests/adapters
