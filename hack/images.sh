#!/usr/bin/env bash
# Builds the programs and pushes their images to the registry of the cluster on this machine or, if KUBECONFIG is set,
# to IMAGE_REGISTRY. What has not changed is neither built nor pushed again, and keeps its digest. The references by
# digest are written to target/images/pushed. SKIP_BUILD=1 uses the programs that are already built.
source "$(dirname "$0")/lib.sh"

images=$TARGET_DIR/images
registry=$CLUSTER_REGISTRY
own_cluster || registry=${IMAGE_REGISTRY:?if KUBECONFIG is set, set IMAGE_REGISTRY=host/prefix to the registry for the images}

# stage IMAGE PROGRAM…: puts these programs, without debug information, into the root directory of an image.
stage() {
    local image=$1 program
    shift
    install -d -m 755 "$images/$image"
    for program in "$@"; do
        [[ $images/$image/$program -nt $PROGRAMS/$program ]] || strip -o "$images/$image/$program" "$PROGRAMS/$program"
    done
}

# push IMAGE ENTRYPOINT DIRECTORY…: pushes an image with one layer per directory.
push() {
    local image=$1 reference
    if own_cluster; then
        reference=$(push_to_cluster "$@")
    else
        reference=$(push_to_registry "$@")
    fi
    echo "$reference"
    echo "$image $reference" >>"$images/pushing"
}

push_to_cluster() {
    local image=$1 entrypoint=$2 directory flags=()
    shift 2
    for directory in "$@"; do flags+=(--layer "$directory"); done
    cluster image push "$image:dev" "${flags[@]}" --entrypoint "$entrypoint" --user 65532
}

push_to_registry() {
    local image=$1 entrypoint=$2 work directory part flags=()
    local history=(--history.created 1970-01-01T00:00:00Z --history.created_by hack/images.sh)
    shift 2
    work=$(mktemp -d)
    umoci init --layout "$work/image"
    umoci new --image "$work/image:dev"
    for directory in "$@"; do
        tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$directory" -cf "$work/layer.tar" .
        umoci raw add-layer "${history[@]}" --image "$work/image:dev" "$work/layer.tar" >&2
    done
    for part in ${entrypoint//,/ }; do flags+=(--config.entrypoint "$part"); done
    umoci config "${history[@]}" --created 1970-01-01T00:00:00Z --image "$work/image:dev" --config.user 65532 \
        --config.env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "${flags[@]}"
    flags=()
    [[ $registry != localhost* && $registry != 127.* ]] || flags=(--dest-tls-verify=false)
    skopeo --insecure-policy copy --quiet "${flags[@]}" --digestfile "$work/digest" \
        "oci:$work/image:dev" "docker://$registry/$image:dev"
    echo "$registry/$image@$(cat "$work/digest")"
    rm -rf "$work"
}

need_languages
need /etc/ssl/certs/ca-certificates.crt ca-certificates
if [[ -z ${SKIP_BUILD:-} ]]; then
    step 'Building the programs (about 4 minutes the first time)'
    cargo build --locked --package dalsegno --package dalsegno-example --package dalsegno-e2e-agent
fi
own_cluster || need skopeo skopeo umoci umoci

step "Pushing the images to $registry"
stage dalsegno dalsegno
# The public CAs, for a PostgreSQL server with a certificate of one of them.
install -d -m 755 "$images"/dalsegno/etc{,/ssl,/ssl/certs}
install -m 644 -t "$images/dalsegno/etc/ssl/certs" /etc/ssl/certs/ca-certificates.crt
stage dalsegno-example-rust agent ledger
stage dalsegno-e2e-agent e2e-agent
# The directory is made anew: a module that no longer exists must not stay in the image.
app=$images/dalsegno-example-python/app
rm -rf "$app"
install -D -m 644 -t "$app" deploy/examples/python-agent/agent.py
install -m 644 deploy/examples/approval/agent.py "$app/purchase.py"
install -D -m 644 -t "$app/dalsegno" sdk/python/src/dalsegno/{*.py,py.typed}
install -D -m 644 -t "$app/dalsegno/aio" sdk/python/src/dalsegno/aio/*.py
: >"$images/pushing"
push dalsegno /dalsegno "$images/dalsegno"
push dalsegno-example-rust /agent "$images/dalsegno-example-rust"
push dalsegno-example-python /usr/bin/python3,/app/agent.py "$(cluster image base python)" "$images/dalsegno-example-python"
push dalsegno-e2e-agent /e2e-agent "$images/dalsegno-e2e-agent"
mv "$images/pushing" "$images/pushed"
