#!/usr/bin/env bash
# Kills everything that may die. A worker in Python with kill -9 before and after every request of it; the example of each
# agent framework before and after a request of each kind; the operator before and after every step of a recovery, for
# each kind of death, and of a wait, on the cluster. A failure of one does not stop the others.
#
#   hack/crash.sh [agents] [operator]        without one: both
source "$(dirname "$0")/lib.sh"
(($# > 0)) || set -- agents operator

[[ ! -x $PROGRAMS/dalsegno ]] || export DALSEGNO_BIN=${DALSEGNO_BIN:-$PROGRAMS/dalsegno}
failed=()
for part in "$@"; do
    case $part in
        agents)
            step 'An agent without a framework'
            need_pytest
            "${pytest[@]}" -p no:cacheprovider sdk/python/tests/crash || failed+=('the plain agent')
            DALSEGNO_ADAPTERS=slow hack/adapters.sh || failed+=('the frameworks')
            ;;
        operator)
            step 'The operator'
            DALSEGNO_E2E_CRASH_MATRIX=1 hack/scenarios.sh chaos operator_crash parked || failed+=('the operator')
            ;;
        *) die "$part is neither agents nor operator" ;;
    esac
done
((${#failed[@]} == 0)) || die "failed: ${failed[*]}"
