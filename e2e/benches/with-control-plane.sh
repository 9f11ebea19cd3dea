#!/usr/bin/env bash
# Runs a command with a control plane of its own, on loopback: etcd, API server, controller manager, scheduler, and fake
# nodes, whose pods kwok reports as running. It touches no other cluster. When the command ends, the control plane and
# its directory are removed.
#
#   with-control-plane.sh KUBE KWOK STAGES COMMAND…
#
# The command gets KUBECONFIG; DALSEGNO_AUDIT_LOG, the log of every pod creation and of every write of the user
# `operator`; and DALSEGNO_BENCH_DIR, the directory with kubeconfigs of the users `operator` and `gateway`.
set -euo pipefail

kube=$1 kwok=$2 stages=$3
shift 3
crds=$(cd "$(dirname "$0")/../../crds" && pwd)
etcd=http://127.0.0.1:22379 peer=http://127.0.0.1:22380
dir=$(mktemp -d "${TMPDIR:-/tmp}/dalsegno-bench.XXXXXX")
chmod 755 "$dir"

processes=()
clean_up() {
    ((${#processes[@]} == 0)) || kill -KILL "${processes[@]}" || true
    wait
    rm -rf "$dir"
}
trap '{ clean_up; } 2>/dev/null' EXIT

# launch NAME ARGUMENT…: starts a program of the kube binary in the background.
launch() {
    local name=$1
    shift
    ln -s "$kube" "$dir/$name"
    "$dir/$name" "$@" >"$dir/$name.log" 2>&1 &
    processes+=($!)
}

# kubeconfig USER: writes a kubeconfig for the user, and the user's token.
kubeconfig() {
    cat >"$dir/$1.kubeconfig" <<EOK
apiVersion: v1
kind: Config
clusters: [{name: bench, cluster: {server: "https://127.0.0.1:26443", insecure-skip-tls-verify: true}}]
users: [{name: $1, user: {token: $1}}]
contexts: [{name: bench, context: {cluster: bench, user: $1}}]
current-context: bench
EOK
    echo "$1,$1,$1,system:masters" >>"$dir/tokens.csv"
}

for user in admin operator gateway; do kubeconfig "$user"; done
openssl genrsa -out "$dir/sa.key" 2048 2>/dev/null
cat >"$dir/audit-policy.yaml" <<'EOK'
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - {level: Metadata, users: [operator], verbs: [create, update, patch, delete, deletecollection]}
  - {level: Metadata, verbs: [create], resources: [{group: "", resources: [pods]}]}
  - {level: None}
EOK
: >"$dir/audit.log"

launch etcd --data-dir="$dir/data" --unsafe-no-fsync --log-level=warn \
    --listen-client-urls=$etcd --advertise-client-urls=$etcd \
    --listen-peer-urls=$peer --initial-advertise-peer-urls=$peer --initial-cluster=default=$peer
launch kube-apiserver --etcd-servers=$etcd --bind-address=127.0.0.1 --secure-port=26443 --cert-dir="$dir/pki" \
    --advertise-address=127.0.0.1 --endpoint-reconciler-type=none --service-cluster-ip-range=10.47.0.0/16 \
    --token-auth-file="$dir/tokens.csv" --authorization-mode=RBAC \
    --service-account-issuer=https://bench --service-account-key-file="$dir/sa.key" \
    --service-account-signing-key-file="$dir/sa.key" \
    --audit-policy-file="$dir/audit-policy.yaml" --audit-log-path="$dir/audit.log" --audit-log-maxsize=1000
export KUBECONFIG=$dir/admin.kubeconfig
ln -s "$kube" "$dir/kubectl"
for ((tries = 0; ; tries++)); do
    "$dir/kubectl" get --raw /readyz >/dev/null 2>&1 && break
    ((tries < 120)) || { tail -n 3 "$dir"/*.log >&2 && exit 1; }
    sleep 0.5
done

# Only the controllers that pods need to be created and scheduled.
launch kube-controller-manager --kubeconfig="$KUBECONFIG" --leader-elect=false --secure-port=0 \
    --controllers=serviceaccount-controller,namespace-controller,node-lifecycle-controller \
    --kube-api-qps=500 --kube-api-burst=1000
launch kube-scheduler --kubeconfig="$KUBECONFIG" --leader-elect=false --secure-port=0 --kube-api-qps=500 --kube-api-burst=1000
"$kwok" --kubeconfig="$KUBECONFIG" --config="$stages" --manage-all-nodes=false \
    --manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake \
    --cidr=10.48.0.0/16 --node-ip=127.0.0.1 --server-address=127.0.0.1:20247 --node-lease-duration-seconds=40 \
    >"$dir/kwok.log" 2>&1 &
processes+=($!)
for node in f1 f2 f3 f4; do
    "$dir/kubectl" apply --server-side -f - >/dev/null <<EOK
{apiVersion: v1, kind: Node, metadata: {name: $node, annotations: {kwok.x-k8s.io/node: fake}}}
EOK
done
"$dir/kubectl" apply --server-side -f "$crds/agentdefinitions.yaml" -f "$crds/agentruns.yaml" -f "$crds/agentapprovals.yaml" >/dev/null
"$dir/kubectl" wait --for=condition=Established crd --all --timeout=30s >/dev/null
"$dir/kubectl" wait --for=condition=Ready node --all --timeout=60s >/dev/null

DALSEGNO_AUDIT_LOG=$dir/audit.log DALSEGNO_BENCH_DIR=$dir "$@"
