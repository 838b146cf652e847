"""Choosing an implementation: never in silence. O-7, design section 6."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from caliber import kernels
from caliber._native import ffi, lib
from caliber.kernels import dispatch
from caliber.model.errors import ConfigError, InternalError, InvalidConfigValue, MissingRequired

ROOT = Path(__file__).resolve().parents[2]


def run(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    base = {key: value for key, value in os.environ.items() if key != "CALIBER_NATIVE"}
    return subprocess.run(
        [sys.executable, "-c", code], env={**base, **env}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("path", kernels.available_paths())
def test_environment_forces_a_path(path: str) -> None:
    done = run("from caliber.kernels import active_path; print(active_path())", CALIBER_NATIVE=path)
    assert (done.returncode, done.stdout.strip()) == (0, path)


def test_nothing_said_means_the_best_path() -> None:
    done = run("from caliber.kernels import active_path, available_paths; print(active_path(), *available_paths())")
    active, *available = done.stdout.split()
    assert active == available[-1]


@pytest.mark.parametrize("path", [*sorted({"avx2", "neon", "dotprod"} - {*kernels.available_paths()}), "avx9", "off"])
def test_a_path_that_is_missing_raises(path: str) -> None:
    with pytest.raises(InvalidConfigValue, match="CALIBER_NATIVE"), kernels.forced_path(path):
        pytest.fail("a missing path was accepted")


def test_a_missing_cpu_feature_is_refused_by_c_itself() -> None:
    row = ffi.new("float[1]")
    out = ffi.new("double[1]")
    assert lib.cal_norms_f32(1 << 30, row, 1, 1, out) == lib.CAL_E_UNSUPPORTED
    assert lib.cal_sha256_spans_i64(1 << 30, ffi.NULL, 0, ffi.NULL, 0, ffi.NULL) == lib.CAL_E_UNSUPPORTED
    with pytest.raises(ConfigError):
        dispatch.check(lib.CAL_E_UNSUPPORTED)


# What a CPU has, and the paths that it runs. Tests on arm64 are in tests/kernels/test_arm64.py.
CPUS = {
    "nothing": ([], ["scalar"]),
    "SHA-NI alone": (["SHANI"], ["scalar"]),
    "AVX2": (["AVX2"], ["scalar", "avx2"]),
    "NEON": (["NEON", "SHA2"], ["scalar", "neon"]),
    "dot products": (["NEON", "DOTPROD"], ["scalar", "neon", "dotprod"]),
}


@pytest.mark.parametrize("cpu", CPUS)
def test_a_path_is_refused_where_the_cpu_lacks_it(cpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    features, paths = CPUS[cpu]
    present = sum(getattr(lib, f"CAL_CPU_{name}") for name in features)

    class Machine:
        cal_cpu_features = staticmethod(lambda: present)

        def __getattr__(self, name: str) -> int:
            value: int = getattr(lib, name)
            return value

    monkeypatch.setattr(dispatch, "load", lambda: (ffi, Machine()))
    assert list(kernels.available_paths()) == paths
    for path in ("avx2", "neon", "dotprod"):
        if path in paths:
            with kernels.forced_path(path):
                native = dispatch.native()
            assert native.features & ~present == 0
            assert native.features & lib.CAL_CPU_DOTPROD == (lib.CAL_CPU_DOTPROD if path == "dotprod" else 0)
        else:
            with pytest.raises(InvalidConfigValue, match=path.upper()), kernels.forced_path(path):
                pytest.fail("a missing path was accepted")
    with kernels.forced_path(""):  # as if nothing were said: the best path, and all that the CPU has
        native = dispatch.native()
    assert (native.name, native.features) == (paths[-1], present)


def test_a_missing_module_says_how_to_build_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "caliber._native", None)
    with pytest.raises(MissingRequired, match="make setup"), kernels.forced_path("scalar"):
        pytest.fail("ran without the native module")


def test_an_unexpected_status_is_a_fault_of_ours() -> None:
    with pytest.raises(InternalError):
        dispatch.check(99)
    with pytest.raises(InternalError):
        dispatch.check(lib.CAL_E_NON_FINITE)  # a caller that did not say which argument


def test_importing_the_package_loads_neither_numpy_nor_the_module() -> None:
    done = run("import sys, caliber.kernels; print('numpy' in sys.modules, 'caliber._native' in sys.modules)")
    assert done.stdout.split() == ["False", "False"], done.stderr


def test_every_public_name_exists() -> None:
    for name in kernels.__all__:
        assert getattr(kernels, name) is not None
    with pytest.raises(AttributeError):
        kernels.no_such_kernel  # noqa: B018


def prototypes(text: str) -> dict[str, str]:
    """Functions of a C text by name, with white space and comments normalised."""
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)
    found = re.findall(r"\b(u?int32_t|size_t)\s+(cal_\w+)\s*\(([^)]*)\)\s*;", text)
    return {name: f"{result} ({' '.join(arguments.split())})" for result, name, arguments in found}


def test_cdef_header_and_stub_agree() -> None:
    header = prototypes((ROOT / "csrc/include/caliber.h").read_text(encoding="utf-8"))
    cdef = prototypes((ROOT / "csrc/ffi/native.cdef.txt").read_text(encoding="utf-8"))
    stub = (ROOT / "caliber/_native.pyi").read_text(encoding="utf-8")
    assert len(header) > 8
    assert header == cdef
    compiled = set(dir(lib))
    assert set(header) == {name for name in compiled if name.startswith("cal_")}
    assert set(re.findall(r"def (cal_\w+)", stub)) == set(header)
    assert set(re.findall(r"^    (CAL_\w+): int", stub, flags=re.MULTILINE)) == {
        name for name in compiled if name.startswith("CAL_")
    }


def test_every_pointer_type_of_python_matches_the_struct_of_c() -> None:
    from caliber.kernels import identifiers, rank

    assert identifiers.STATE.itemsize == ffi.sizeof("cal_uuid7_state")
    assert ffi.sizeof("cal_segment") == 7 * ffi.sizeof("void *")
    fields = {name: field.type.cname.replace(" const", "") for name, field in ffi.typeof("cal_rank_columns").fields}
    assert list(fields.items()) == list(rank.C_TYPES.items())
