#!/bin/sh
# Says what to install when this machine cannot build CALIBER. Uses nothing but the shell.
set -eu
python="${PYTHON:-python3}"

fail() {
    printf 'CALIBER cannot be built here: %s\n' "$1" >&2
    printf '  Debian, Ubuntu:  apt-get install %s\n' "$2" >&2
    printf '  Fedora:          dnf install %s\n' "$3" >&2
    printf '  macOS:           %s\n' "$4" >&2
    exit 1
}

command -v "$python" >/dev/null 2>&1 ||
    fail "there is no $python." "python3 python3-venv python3-dev" "python3 python3-devel" "brew install python@3.12"
"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' ||
    fail "$("$python" --version) is not one of Python 3.11 to 3.14 (set PYTHON=... to choose another)." \
        "python3 python3-venv python3-dev" "python3 python3-devel" "brew install python@3.12"
"$python" -c 'import venv, ensurepip' 2>/dev/null ||
    fail "$python has no venv module." "python3-venv" "python3" "brew install python@3.12"
header="$("$python" -c 'import sysconfig, os; print(os.path.join(sysconfig.get_path("include"), "Python.h"))')"
[ -f "$header" ] || fail "the headers of $python are missing." "python3-dev" "python3-devel" "brew install python@3.12"

compiler="${CC:-}"
if [ -z "$compiler" ]; then
    for candidate in cc gcc clang; do
        if command -v "$candidate" >/dev/null 2>&1; then compiler="$candidate" && break; fi
    done
fi
[ -n "$compiler" ] && command -v "${compiler%% *}" >/dev/null 2>&1 ||
    fail "there is no C compiler (cc, gcc or clang; set CC=... to name another)." \
        "build-essential" "gcc make" "xcode-select --install"
