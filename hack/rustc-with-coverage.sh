#!/bin/sh
# rustc for the fuzz targets: what decodes is compiled with the coverage that libFuzzer is guided by, as its own compiler
# flags would ask for it (all of these are stable). The rest, which is most of the build, goes without; and so does what
# the build itself runs (macros), which is compiled without --target.
case "$CARGO_PKG_NAME $* " in
    dalsegno*" --target "* | "serde_json "*" --target "*)
        exec "$@" -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
            -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
            -Cllvm-args=-sanitizer-coverage-trace-compares
        ;;
esac
exec "$@"
