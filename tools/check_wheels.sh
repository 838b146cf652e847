#!/bin/sh
# Fails unless cibuildwheel would build exactly the wheels that wheels/expected.txt lists.
# Usage: check_wheels.sh PYTHON
set -eu
python="$1"
found="$(mktemp)"
trap 'rm -f "$found"' EXIT

identifiers() {
    "$python" -m cibuildwheel --print-build-identifiers --config-file wheels/cibuildwheel.toml \
        --platform "$1" --archs "$2" .
}

{
    identifiers linux x86_64,aarch64
    identifiers macos x86_64,arm64
} | LC_ALL=C sort >"$found"
if ! diff -u wheels/expected.txt "$found"; then
    echo "the wheels that would be built differ from wheels/expected.txt" >&2
    exit 1
fi
