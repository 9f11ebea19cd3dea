#!/usr/bin/env bash
# Builds the previous version, for the test of an upgrade and a rollback: its program, whose image is pushed as
# dalsegno:previous, and its chart. What is built already is kept.
source "$(dirname "$0")/lib.sh"

previous=$TARGET_DIR/previous
has_previous || die "This clone does not have the previous version, $PREVIOUS_VERSION: fetch the whole history."

if [[ $(cat "$previous/commit" 2>/dev/null) != "$PREVIOUS_VERSION" ]]; then
    need_languages
    step 'Building the previous version (about 2 minutes)'
    rm -rf "$previous"
    mkdir -p "$previous/source" "$previous/image"
    git archive "$PREVIOUS_VERSION" | tar -x -C "$previous/source"
    # The target is shared, so that only the project's own crates are compiled. With `--workspace` and a test, cargo
    # chooses the features with which the other crates were built.
    build=(cargo build --locked --workspace --bin dalsegno --test generated)
    CARGO_TARGET_DIR=$TARGET_DIR "${build[@]}" --manifest-path "$previous/source/Cargo.toml"
    strip -o "$previous/image/dalsegno" "$PROGRAMS/dalsegno"
    # The program of this version has the same path.
    "${build[@]}"
    install -D -m 644 -t "$previous/image/etc/ssl/certs" /etc/ssl/certs/ca-certificates.crt
    echo "$PREVIOUS_VERSION" >"$previous/commit"
fi
cluster image push dalsegno:previous --layer "$previous/image" --entrypoint /dalsegno --user 65532
