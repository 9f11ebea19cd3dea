#!/usr/bin/env bash
# Static checks of the sources. It runs all of them and fails if one fails.
source "$(dirname "$0")/lib.sh"

need_languages
{ cargo clippy --version && cargo fmt --version; } >/dev/null 2>&1 || rustup component add clippy rustfmt
failures=0
check() {
    local name=$1
    shift
    if "$@"; then
        echo "${GREEN}ok${PLAIN}      $name"
    else
        echo "${RED}FAILED${PLAIN}  $name"
        failures=$((failures + 1))
    fi
}

# With two TLS providers in one graph, kube panics at its first connection.
one_tls_provider() {
    local found
    found=$(cargo tree --locked --workspace --target all --invert aws-lc-rs 2>/dev/null || true)
    [[ -z $found ]] || { echo "$found"; return 1; }
}

# The decision knows neither a database nor how bytes are sealed, compressed or cut.
pure_decision() {
    local tree
    tree=$(cargo tree --locked --package dalsegno-core --edges normal --prefix none) || return 1
    ! grep -E '^(sqlx|ring|zstd|fastcdc|dalsegno-(format|proof|store|gateway))([- ]|$)' <<<"$tree"
}

go_format() {
    local found
    found=$(gofmt -l e2e/cluster)
    [[ -z $found ]] || { echo "not formatted: $found"; return 1; }
}

# Checks the chart with Helm from the path, or with the cluster's Helm.
chart() {
    local helm=helm
    if ! command -v helm >/dev/null; then
        helm=$(cluster build helm | grep -o '/.*/helm$') || return 1
    fi
    # Nobody publishes an image: the defaults must be refused with the command that builds one.
    [[ $("$helm" template dalsegno charts/dalsegno 2>&1) = *'docker build --file deploy/Dockerfile'* ]] ||
        { echo 'the default image is accepted'; return 1; }
    local template=("$helm" template dalsegno charts/dalsegno --set image.tag=dev)
    "$helm" lint --strict charts/dalsegno --set image.tag=dev && "${template[@]}" >/dev/null || return 1
    # The chart must refuse values that would be ignored, or that the API server would refuse after half the
    # installation.
    local value
    for value in postgres.role=app postgres.migrationSecret.name=owner postgres.caSecret.name=ca \
        listenAddress=everywhere 'watchNamespaces={Team}' operator.envs=x \
        persistence.size=10g persistence.size=1m persistence.size=1K terminationGracePeriodSeconds=14 \
        anchors.sink=file anchors.sink=log log=verbose \
        notifications.url=http://a notifications.url=https://a/b 'notifications.kinds={Held}' \
        gateway.tls.mode=on gateway.tls.mode=secret gateway.tls.mode=certManager gateway.tls.settle=90 \
        gateway.tls.mode=secret,gateway.tls.secret.name=dalsegno-tls \
        checkpoints.snapshotEvery=0 checkpoints.snapshotEvery=51 retention.purgeDays=0 gateway.memory.responses=160 gateway.memory.responses=159Mi gateway.memory.deltaBases=1000m \
        gateway.memory.bodies=64Mi operator.memory.cache=0Mi; do
        ! "${template[@]}" --set "$value" >/dev/null 2>&1 || { echo "accepted: $value"; return 1; }
    done
    # With watched namespaces no right of the operator to pods is cluster-wide. The roles of people are bound by people.
    local watched own=(--show-only templates/rbac.yaml --show-only templates/deployment.yaml)
    watched=$("${template[@]}" "${own[@]}" --set 'watchNamespaces={a,b}') &&
        [[ $(grep -c 'resources: \[pods\]' <<<"$watched") = 2 && $watched = *'value: "a,b"'* ]] &&
        ! grep -A 200 '^kind: ClusterRole$' <<<"$watched" | sed '/^---/q' | grep -q pods || return 1
    # The operator reads and writes only the Secrets of TLS, by name, and without TLS none.
    local tls
    tls=$("${template[@]}" --set gateway.tls.mode=secret,gateway.tls.secret.name=own) &&
        [[ $tls = *'resourceNames: [own]'* && $tls = *'value: https://dalsegno-gateway.default.svc:8443'* ]] &&
        ! "${template[@]}" --set gateway.tls.mode=off | grep -q 'resources: \[secrets, configmaps\]' &&
        [[ $("${template[@]}" --set gateway.tls.mode=off) = *'value: http://dalsegno-gateway.default.svc:8080'* ]] ||
        { echo 'TLS has other rights or another URL'; return 1; }
    # Notifications need the Secret that signs them, and only the operator has it.
    local notifies=(--set notifications.url=https://a/b --set notifications.existingSecret.name=hook)
    [[ $("${template[@]}" "${notifies[@]}" | grep -c 'mountPath: /etc/dalsegno/notifications$') = 1 ]] || return 1
    # A value of null removes a field of the security context, for OpenShift.
    ! "${template[@]}" --set podSecurityContext.runAsUser=null | grep -q runAsUser || return 1
    # With PostgreSQL the chart must encrypt what workers write, unless encryption is disabled explicitly.
    local postgres=("${template[@]}" --set postgres.existingSecret.name=dsn)
    [[ $("${postgres[@]}" --set encryption.existingSecret=keys) = *DALSEGNO_ENCRYPTION_KEYS* ]] &&
        "${postgres[@]}" --set encryption.enabled=false >/dev/null &&
        ! "${postgres[@]}" >/dev/null 2>&1 || return 1
    postgres+=(--set encryption.enabled=false)
    # Two operators elect a leader. A single one does not.
    [[ $("${postgres[@]}") = *$'DALSEGNO_LEADER_ELECTION\n              value: "true"'* ]] &&
        [[ $("${postgres[@]}" --set operator.replicas=1) = *$'DALSEGNO_LEADER_ELECTION\n              value: "false"'* ]] &&
        ! "${template[@]}" --set operator.replicas=2 >/dev/null 2>&1 || return 1
    # Every container that connects must have the server's CA: operator, gateway, and the init container of each.
    [[ $("${postgres[@]}" --set postgres.caSecret.name=ca |
        grep -c -e 'name: SSL_CERT_FILE' -e 'mountPath: /etc/dalsegno/ca$') = 8 ]] || return 1
    # A gateway requests the memory that the page names, and has it as its limit. A Rust test compares the page with the
    # program.
    local memory larger page=docs/guides/in-production.md
    memory=$(sed -n 's/^With the defaults a gateway may take `\([0-9]*Mi\)`.*/\1/p' "$page")
    larger=$(sed -n 's/.*of bodies it may take `\([0-9]*Mi\)`.*/\1/p' "$page")
    [[ -n $memory && $("${postgres[@]}" | grep -c "memory: $memory$") = 2 && -n $larger &&
        $("${postgres[@]}" --set gateway.connections.max=8192 --set gateway.memory.requestBodies=256Mi |
            grep -c "memory: $larger$") = 2 ]] || { echo "the gateway's memory is not $memory or $larger"; return 1; }
    # Two of the largest states are counted for each kind of reads, also where the value is less.
    [[ $("${postgres[@]}" --set gateway.memory.resumeReads=72Mi --set gateway.memory.inspectionReads=72Mi |
        grep -c "memory: $memory$") = 2 ]] || { echo "small reads do not count as $memory"; return 1; }
    # Each value counts, and goes into its own variable.
    local raised
    raised=$("${postgres[@]}" --set gateway.memory.responses=161Mi,gateway.memory.resumeReads=129Mi \
        --set gateway.memory.inspectionReads=130Mi,gateway.memory.pageReads=20Mi,gateway.memory.deltaBases=1Gi \
        --set operator.memory.cache=129Mi,operator.memory.commands=257Mi,operator.memory.stateReads=129Mi)
    [[ $(grep -c 'memory: 2343Mi$' <<<"$raised") = 2 && $(grep -c 'memory: 676Mi$' <<<"$raised") = 2 &&
        $raised = *$'RESUME_BYTES\n              value: 129Mi'* &&
        $raised = *$'INSPECTION_BYTES\n              value: 130Mi'* &&
        $raised = *$'STATE_READ_BYTES\n              value: 129Mi'* ]] || { echo 'a value of memory is ignored'; return 1; }
    # 672Mi and 1720Mi: the operator with the defaults, alone and with the gateway in its pod.
    [[ $("${postgres[@]}" | grep -c 'memory: 672Mi$') = 2 && $("${template[@]}" | grep -c 'memory: 1720Mi$') = 2 ]] ||
        { echo "the operator's memory has changed"; return 1; }
    # A given amount replaces the sum. A given limit is also the request; a given request has no limit.
    [[ $("${postgres[@]}" --set gateway.resources.limits.memory=3Gi | grep -c 'memory: 3Gi$') = 2 ]] &&
        [[ $("${postgres[@]}" --set gateway.resources.requests.memory=256Mi | grep -c "memory: \(256Mi\|$memory\)$") = 1 ]] ||
        { echo 'a given amount of memory is changed'; return 1; }
    # The chart must refuse the working role without the owner's Secret, and the other way round.
    local role=(--set postgres.role=app) owner=(--set postgres.migrationSecret.name=owner)
    [[ $("${postgres[@]}" "${role[@]}" "${owner[@]}") = *DALSEGNO_GRANT_TO* ]] &&
        ! "${postgres[@]}" "${role[@]}" >/dev/null 2>&1 && ! "${postgres[@]}" "${owner[@]}" >/dev/null 2>&1
}

scripts() {
    local script
    for script in hack/*.sh .ci/run; do bash -n "$script" || return 1; done
}

python_syntax() {
    local file
    for file in $(find sdk/python/src -name '*.py') hack/*.py deploy/examples/*/*.py; do
        python3 -c 'import ast, sys; ast.parse(open(sys.argv[1]).read(), sys.argv[1])' "$file" || return 1
    done
}

python_types() {
    need_types || return 1
    (cd sdk/python && "$type_checkers/mypy" --no-error-summary --cache-dir "$TARGET_DIR/mypy" &&
        "$type_checkers/pyright" --pythonpath "$type_checkers/python" &&
        "$type_checkers/pyright" --project tests/typing/plain.json --pythonpath "$type_checkers/python")
}

# The fuzz targets are a workspace of their own. Its Cargo.lock must contain the dependencies of the crates that it
# uses.
lock_of_fuzz() {
    cargo metadata --locked --format-version 1 --manifest-path operator/fuzz/Cargo.toml >/dev/null ||
        { echo 'cargo metadata --manifest-path operator/fuzz/Cargo.toml updates it'; return 1; }
}

check 'format of Rust' cargo fmt --all --check -- -l
check 'format of Go' go_format
check 'shell scripts' scripts
check 'Python' python_syntax
check 'mypy and pyright' python_types
check 'one TLS provider' one_tls_provider
check 'lock of the fuzz targets' lock_of_fuzz
check 'go vet' go vet -C e2e/cluster ./...
check 'chart' chart
check 'the decision has no database' pure_decision
check 'clippy' cargo clippy --locked --quiet --workspace --all-targets -- --deny warnings
((failures == 0)) || die "$failures of the checks failed"
