#!/bin/sh
# rustc for the fuzz targets. It compiles the decoders with the coverage that guides libFuzzer, with the flags that
# libFuzzer's own compiler support would use; all of them are stable. The dependencies, which are most of the build, and
# the build's own programs and macros, which Cargo compiles without --target, are compiled without coverage.
case "$CARGO_PKG_NAME $* " in
    dalsegno*" --target "* | "serde_json "*" --target "*)
        exec "$@" -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
            -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
            -Cllvm-args=-sanitizer-coverage-trace-compares
        ;;
esac
exec "$@"
