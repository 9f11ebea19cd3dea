#!/usr/bin/env bash
# Builds the programs and pushes their images to the registry of the cluster on this machine or, if KUBECONFIG is set,
# to IMAGE_REGISTRY. What has not changed is neither built nor pushed again, and keeps its digest. The references by
# digest are written to target/images/pushed. SKIP_BUILD=1 uses the programs that are already built.
#
#   hack/images.sh [EXAMPLE]…       also those of examples with a requirements.txt in deploy/examples; `all`: all of them
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

# agent DIRECTORY SOURCE…: makes the layer of an agent in Python: its files and our package. The directory is made anew,
# since a module that no longer exists must not stay in the image.
agent() {
    local app=$1/app
    rm -rf "$1"
    install -D -m 644 -t "$app" "${@:2}"
    (cd sdk/python/src && find dalsegno -name '*.py' -exec install -D -m 644 {} "$app/{}" \;)
    install -m 644 -t "$app/dalsegno" sdk/python/src/dalsegno/py.typed
}

# packages EXAMPLE: prints the directory of the layer with the packages of the example's requirements.txt. They are
# installed once by the Python of the images, outside of the clone. The byte code is compiled because a pod cannot store
# it, and does not depend on times because all times in an image are 0.
packages() {
    local requirements=deploy/examples/$1/requirements.txt cache=${XDG_CACHE_HOME:-$HOME/.cache}/dalsegno
    local key layer work site=usr/local/lib/python3.11/dist-packages
    key=$(cat "$requirements" <(echo "$base") | sha256sum)
    layer=$cache/packages-$1-${key:0:16}
    if [[ ! -d $layer ]]; then
        python3 -c 'import ensurepip' 2>/dev/null || need /nowhere python3-venv >&2
        [[ -x $cache/pip/bin/pip ]] || python3 -m venv "$cache/pip"
        work=$(mktemp -d "$layer.XXXXXX")
        "$cache/pip/bin/python" -m pip --quiet --disable-pip-version-check --python "$base/usr/bin/python3.11" \
            install --no-compile --root-user-action ignore --target "$work/$site" --requirement "$requirements" >&2
        rm -rf "$work/$site/bin" # they would name this machine's Python
        PYTHONHASHSEED=0 "$base/usr/bin/python3.11" -m compileall -q -j 0 --invalidation-mode unchecked-hash \
            -s "$work" -p / "$work/$site" >&2
        chmod 755 "$work"
        mv --no-target-directory "$work" "$layer"
    fi
    echo "$layer"
}

# example NAME: pushes the image of an example with a requirements.txt.
example() {
    local image=dalsegno-example-${1//_/-} layer
    layer=$(packages "$1")
    agent "$images/$image" "deploy/examples/$1"/*.py
    push "$image" /usr/bin/python3,/app/agent.py "$base" "$layer" "$images/$image"
}

examples=("$@")
if [[ $* = all ]]; then
    examples=()
    for file in deploy/examples/*/requirements.txt; do examples+=("$(basename "$(dirname "$file")")"); done
fi
for name in "${examples[@]}"; do
    [[ -f deploy/examples/$name/requirements.txt ]] || die "deploy/examples/$name/requirements.txt does not exist"
done

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
agent "$images/dalsegno-example-python" deploy/examples/python-agent/agent.py
install -m 644 deploy/examples/approval/agent.py "$images/dalsegno-example-python/app/purchase.py"
base=$(cluster image base python)
: >"$images/pushing"
push dalsegno /dalsegno "$images/dalsegno"
push dalsegno-example-rust /agent "$images/dalsegno-example-rust"
push dalsegno-example-python /usr/bin/python3,/app/agent.py "$base" "$images/dalsegno-example-python"
push dalsegno-e2e-agent /e2e-agent "$images/dalsegno-e2e-agent"
for name in "${examples[@]}"; do example "$name"; done
mv "$images/pushing" "$images/pushed"
