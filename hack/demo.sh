#!/usr/bin/env bash
# The demo: one run of an agent whose pod is really evicted and that resumes where it was. It checks every claim that it
# prints, and exits with 1 if one is wrong. It can be run again at any time.
source "$(dirname "$0")/lib.sh"

namespace=demo run=field-guide turns=20 evict_after=7
work=$(mktemp -d)
watchers=()
clean_up() {
    ((${#watchers[@]} == 0)) || kill "${watchers[@]}" 2>/dev/null || true
    rm -rf "$work"
}
trap clean_up EXIT
k() { kubectl --namespace "$namespace" "$@"; }
failed() {
    echo
    k get pods,agentruns 2>&1 || true
    kubectl --namespace dalsegno-system logs deployment/dalsegno --tail 20 2>&1 || true
    die "The demo failed: $*"
}

# until_true SECONDS WHAT COMMAND…: waits until the command succeeds.
until_true() {
    local end=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < end)) || failed "$what did not happen in time"
        sleep 0.2
    done
}

# show PREFIX FILE COMMAND…: runs the command in the background. Its lines go to the screen and to the file.
show() {
    local prefix=$1 file=$2
    shift 2
    "$@" > >(tee -a "$file" | sed -u "s/^/$prefix/") 2>/dev/null &
    watchers+=($!)
}
follow() { # follow ATTEMPT: shows the log of the attempt's pod
    until_true 60 "attempt $1" k wait --for=jsonpath='{.status.phase}'=Running "pod/$run-$1" --timeout=1s
    show "  ${DIM}pod $run-$1 on $(k get pod "$run-$1" -o jsonpath='{.spec.nodeName}') │${PLAIN} " "$work/log-$1" \
        kubectl --namespace "$namespace" logs --follow "pod/$run-$1"
}
logged() { grep -q "$2" "$work/log-$1"; }

# manifests EXAMPLE: prints the ledger's and the example's manifests with the digests of the images that were just pushed.
manifests() {
    local image reference script=()
    while read -r image reference; do
        script+=(-e "s#$CLUSTER_REGISTRY/$image:dev#$reference#")
    done <"$TARGET_DIR/images/pushed"
    for file in deploy/examples/ledger.yaml "deploy/examples/$1/agentrun.yaml"; do
        sed "${script[@]}" "$file"
        echo ---
    done
}

use_cluster
hack/images.sh

step 'helm upgrade --install dalsegno charts/dalsegno --namespace dalsegno-system --wait'
image=$(awk '$1 == "dalsegno" { print $2 }' "$TARGET_DIR/images/pushed")
helm upgrade --install dalsegno charts/dalsegno --namespace dalsegno-system --create-namespace --wait --timeout 120s \
    --set image.repository="${image%@*}" --set image.digest="${image#*@}" >"$work/helm" 2>&1 ||
    { cat "$work/helm"; failed "the chart cannot be installed"; }
sed -n 's/^\(Store: [^.]*\.\).*/\1/p' "$work/helm"

step "An agent that works for $turns turns, and a ledger that counts what it does"
kubectl create namespace "$namespace" --dry-run=client -o yaml | kubectl apply -f - >/dev/null
manifests python-agent | k delete --ignore-not-found --cascade=foreground --timeout 60s -f - >/dev/null 2>&1 || failed 'the objects of an earlier demo cannot be deleted'
k wait --for delete pod --selector "dalsegno.dev/run=$run" --timeout 60s >/dev/null 2>&1 || failed 'the pod of an earlier demo cannot be deleted'
manifests python-agent | k apply -f - || failed 'the examples are refused'
k rollout status deployment/ledger --timeout 60s >/dev/null || failed 'the ledger does not start'
show "  ${GREEN}event${PLAIN} │ " "$work/events" kubectl --namespace "$namespace" get events --watch --no-headers \
    --field-selector "involvedObject.uid=$(k get agentrun "$run" -o jsonpath='{.metadata.uid}')" -o custom-columns=:.reason,:.message
follow 1
until_true 60 "turn $evict_after" logged 1 "^turn $evict_after of"

step "Now its pod is evicted: POST /api/v1/namespaces/$namespace/pods/$run-1/eviction"
printf '{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"%s","namespace":"%s"}}' "$run-1" "$namespace" |
    kubectl create --raw "/api/v1/namespaces/$namespace/pods/$run-1/eviction" -f - >/dev/null || failed 'the eviction is refused'
evicted=$(date +%s%N)
follow 2
until_true 60 'the first turn of attempt 2' logged 2 '^turn '
pause=$((($(date +%s%N) - evicted) / 1000000))
until_true 90 'the end of the run' k wait --for=condition=Finished "agentrun/$run" --timeout=1s
sleep 1 # the last event, the last lines

step 'The result'
expect() { # expect WHAT COMMAND…
    local what=$1
    shift
    "$@" || failed "not true: $what"
    echo "  ${GREEN}✓${PLAIN} $what"
}
is() { [[ $1 = "$2" ]]; }
status() { k get agentrun "$run" -o jsonpath="{.status.$1}"; }
last=$(sed -n 's/^turn \([0-9]*\) of.*/\1/p' "$work/log-1" | tail -1)
k get --raw "/api/v1/namespaces/$namespace/services/ledger:http/proxy/summary?run=$namespace/$run" >"$work/ledger"
count() { python3 -c "import json; ledger = json.load(open('$work/ledger')); print($1)"; }
resumed=$(status attempt.resumedFromTurn)
expect "the run succeeded" is "$(status summary)" Succeeded
expect "attempt 2 resumed after turn $resumed, which attempt 1 had committed" test "$resumed" -ge "$last"
expect "no turn was committed twice and none is missing" is "$(cat "$work"/log-? | sed -n 's/^turn \([0-9]*\) of.*/\1/p' | sort -n | uniq | wc -l) $(cat "$work"/log-? | grep -c '^turn ')" "$turns $turns"
expect "the eviction was counted as a disruption and not charged as a crash" is "$(status recovery.disruptions) $(status recovery.recoveryAttempts)" '1 0'
expect "the ledger has $turns entries, one for each turn" is "$(count "ledger['entries'], [t['entries'] for t in ledger['byTurn'].values()] == [1] * $turns")" "$turns True"
echo "  the tool was called $(count "ledger['deliveries']") times; the ledger recognised $(count "ledger['deliveries'] - ledger['entries']") repeats by their keys"
echo "  from the eviction to the first new turn on another pod: $((pause / 1000)).$((pause % 1000 / 100)) s"

step "kubectl get agentrun $run --namespace $namespace --output wide"
k get agentrun "$run" -o wide
step "kubectl describe agentrun $run --namespace $namespace"
k describe agentrun "$run"

step 'An agent that asks a person before it pays, and holds no pod meanwhile'
k delete agentrun/purchase agentdefinition/purchase --ignore-not-found --cascade=foreground --timeout 60s >/dev/null 2>&1 || failed 'the objects of an earlier demo cannot be deleted'
paid_before=$(k get --raw "/api/v1/namespaces/$namespace/services/ledger:http/proxy/summary?run=$namespace/purchase" | python3 -c 'import json, sys; print(json.load(sys.stdin)["entries"])')
manifests approval | k apply -f - >/dev/null || failed 'the purchase is refused'
until_true 60 'the question of the agent' k wait --for=jsonpath='{.status.summary}'=Waiting agentrun/purchase --timeout=1s
until_true 60 'the approval' sh -c "kubectl --namespace $namespace get agentapprovals --output name | grep -q purchase"
approval=$(k get agentapprovals --output name | grep purchase)
until_true 30 'the end of its pod' sh -c "! kubectl --namespace $namespace get pods --selector dalsegno.dev/run=purchase --output name --field-selector status.phase=Running | grep -q ."
k get agentapprovals
me=$(kubectl auth whoami --output jsonpath='{.status.userInfo.username}')
hash=$(k get "$approval" --output jsonpath='{.spec.proposalHash}')
decision=$(printf '{"spec":{"decision":{"verdict":"Approved","proposalHash":"%s","reason":"within budget","by":"%s"}}}' "$hash" "$me")
step "kubectl patch $approval --type merge --patch '$decision'"
k patch "$approval" --type merge --patch "$decision"
until_true 60 'the end of the purchase' k wait --for=condition=Finished agentrun/purchase --timeout=1s
k get --raw "/api/v1/namespaces/$namespace/services/ledger:http/proxy/summary?run=$namespace/purchase" >"$work/ledger"
expect "the purchase succeeded: $(k get agentrun purchase -o jsonpath='{.status.result.message}')" is "$(k get agentrun purchase -o jsonpath='{.status.summary}')" Succeeded
expect 'the ledger has one payment' is "$(count "ledger['entries'] - $paid_before")" 1

step 'Next steps'
if own_cluster; then
    cat <<'NEXT'
  eval "$(go run -C e2e/cluster . env)"                  # kubectl and helm for this shell
  kubectl -n demo apply -f deploy/examples/rust/agentrun.yaml
  kubectl -n demo delete pod field-guide-rust-1 --now    # another way to lose a worker
  kubectl -n demo get agentruns --watch
NEXT
fi
cat <<'NEXT'
  kubectl -n dalsegno-system exec deployment/dalsegno -- /dalsegno show demo/field-guide --calls
  kubectl explain agentrun.spec.recovery
NEXT
own_cluster && echo '  make cluster-down                                      # removes the cluster'
true
