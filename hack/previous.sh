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
    # The libraries of others are those of this version's build. `--workspace` with a test chooses the same features for
    # them. All own files are removed, so that no build writes into a file of the other one.
    for part in debug x86_64-unknown-linux-gnu/debug; do
        mkdir -p "$previous/target/$part"
        cp --archive --link "$TARGET_DIR/$part/"{.fingerprint,build,deps} "$previous/target/$part"
    done
    find "$previous/target" \( -name '*dalsegno*' -o -name 'generated-*' \) -prune -exec rm -r {} +
    CARGO_TARGET_DIR=$previous/target cargo build --locked --workspace --bin dalsegno --test generated \
        --manifest-path "$previous/source/Cargo.toml"
    strip -o "$previous/image/dalsegno" "$previous/target/${PROGRAMS#"$TARGET_DIR/"}/dalsegno"
    rm -rf "$previous/target"
    install -D -m 644 -t "$previous/image/etc/ssl/certs" /etc/ssl/certs/ca-certificates.crt
    echo "$PREVIOUS_VERSION" >"$previous/commit"
fi
cluster image push dalsegno:previous --layer "$previous/image" --entrypoint /dalsegno --user 65532
