"""The kernels of 64-bit ARM: what they find on a CPU, and faults that their tests must see. Issue 3, items 4 and 8.

That they equal the twins is for the tests of every path to say, which run them on the paths named arm64-…; here is
what shows that those tests could fail. docs/decisions/0038-arm64-is-proven-in-an-emulator.md
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from support.evidence import share
from support.inspection import replaced
from support.kernels import arm64
from support.kernels.native_builds import Change
from support.kernels.remote import ARGUMENTS, FIELDS, FUNCTIONS
from support.kernels.twins import vectors as twins
from support.kernels.vector_kernels import row_sums, score_bounds
from token_machine import token_keys, token_units

from caliber import kernels
from caliber._native import ffi
from caliber.kernels import dispatch
from caliber.kernels.dispatch import running
from caliber.kernels.tokens.costs import COSTS
from caliber.kernels.vectors import scoring
from caliber.model.errors import InvalidConfigValue

pytestmark = pytest.mark.prove

if not arm64.PATHS:
    pytest.skip("this machine runs them itself" if arm64.NATIVE_HERE else arm64.MISSING, allow_module_level=True)
BASELINE = {"CAL_CPU_NEON", "CAL_CPU_SHA2"}
CPUS = {
    "cortex-a57": (BASELINE, ("scalar", "neon")),
    "neoverse-n1": (BASELINE | {"CAL_CPU_DOTPROD"}, ("scalar", "neon", "dotprod")),
}


@pytest.mark.parametrize("cpu", CPUS)
def test_paths_are_what_the_cpu_has(cpu: str, monkeypatch: pytest.MonkeyPatch) -> None:  # O-7
    features, paths = CPUS[cpu]
    native = arm64.kernels("dotprod" if "dotprod" in paths else "neon")
    monkeypatch.setattr(dispatch, "load", lambda: (native.ffi, native.lib))
    monkeypatch.delenv("CALIBER_NATIVE", raising=False)
    assert native.lib.cal_cpu_features() == sum(getattr(native.lib, name) for name in features)
    assert kernels.available_paths() == paths
    with replaced(dispatch, "chosen", None):
        assert kernels.active_path() == paths[-1]
    for path in {"avx2", "neon", "dotprod"} - set(paths):
        with pytest.raises(InvalidConfigValue, match=path.upper()), kernels.forced_path(path):
            pytest.fail("a missing path was accepted")


def test_c_refuses_a_feature_that_the_cpu_lacks() -> None:
    native = arm64.kernels("neon")
    lib, row, out = native.lib, native.ffi.new("float[1]"), native.ffi.new("double[1]")
    for missing in (lib.CAL_CPU_DOTPROD, lib.CAL_CPU_AVX2):
        assert lib.cal_norms_f32(lib.CAL_CPU_NEON | missing, row, 1, 1, out) == lib.CAL_E_UNSUPPORTED
    assert lib.cal_norms_f32(lib.CAL_CPU_NEON, row, 1, 1, out) == lib.CAL_OK


def check(native: dispatch.Native) -> None:
    """Run the tests of every path on the files of one instruction set, at their smallest."""
    generator = np.random.default_rng(1)
    local = dispatch.Native(dispatch.load()[0], dispatch.load()[1], 0, dispatch.SCALAR)
    for dimensions in (1, 7, 8, 9, 23, 64, 65, 130):
        rows = generator.standard_normal((75, dimensions), dtype=np.float32)
        query = generator.standard_normal(dimensions, dtype=np.float32)
        for metric in (twins.COSINE, twins.L2, twins.INNER_PRODUCT):
            with running(native):
                sums = row_sums(rows, query, metric=metric)
            assert (sums == twins.sums(rows, query, metric=metric)).all()
            for threshold in (-0.1, 0.0, 0.02, 0.08) if dimensions >= 64 else ():
                bounds = []
                for one in (native, local):
                    with running(one):
                        norms = scoring.row_norms(rows, field="rows")
                        segment = scoring.Segment(rows, norms, scoring.code_rows(rows, norms), None, 75)
                        bounds.append(score_bounds(segment, query, threshold, metric=metric))
                assert all((ours == theirs).all() for ours, theirs in zip(*bounds, strict=True))
    texts = ("Words,  __words__ 2024\n", "слова слова 漢字かな 😀😀😀 ", "longestwordsofall" * 3)
    text = np.frombuffer("".join(texts).encode(), np.uint8)
    estimator, costs = kernels.CalibratedEstimator("o200k_base"), np.frombuffer(COSTS["o200k_base"], np.uint8)
    edges = np.array([0, 7, 40, 41, 90, len(text)])
    sums = np.cumsum(costs[token_keys(text)], dtype=np.int64)
    with running(native):
        fitting = [estimator.fitting(text.tobytes(), int(limit)) for limit in sums]
        lengths = estimator.lengths_of_spans(text, edges)
    assert fitting == [int(np.count_nonzero(sums <= limit)) for limit in sums]
    assert lengths.tolist() == [token_units(text[a:b], costs) for a, b in pairwise(edges.tolist())]
    offsets = np.cumsum([0, *range(0, 200, 9), 1000, 3])
    data = generator.bytes(int(offsets[-1]))
    with running(native):
        digests = kernels.sha256_spans(np.frombuffer(data, np.uint8), offsets)
    expected = [hashlib.sha256(data[a:b]).digest() for a, b in pairwise(offsets.tolist())]
    assert [row.tobytes() for row in digests] == expected


@pytest.mark.parametrize("path", arm64.CPU_OF)
def test_the_kernels_are_right_without_a_fault(path: str) -> None:
    check(arm64.kernels(path))


# The path to run, the fault, and what must be said of it where a wrong answer is not what shows it.
MUTANTS: dict[str, tuple[str, Change] | tuple[str, Change, str]] = {
    "lanes folded in another order": (
        "neon",
        ("vectors/vectors_neon.c", "vaddq_f64(l.p01, l.p45), c_d = vaddq_f64(l.p23, l.p67)",
         "vaddq_f64(l.p01, l.p23), c_d = vaddq_f64(l.p45, l.p67)"),
    ),
    "a lane off by one": (
        "neon", ("vectors/vectors_neon.c", "vcvt_high_f64_f32(low), vcvt_f64_f32(vget_low_f32(high))",
                 "vcvt_f64_f32(vget_low_f32(high)), vcvt_high_f64_f32(low)"),
    ),
    "squares fused with their sum": (
        "neon", ("vectors/vectors_neon.c", "vaddq_f64(sum, vmulq_f64(difference, difference))",
                 "vfmaq_f64(sum, difference, difference)"),
    ),
    "tail of a row one short": (
        "neon", ("vectors/vectors_neon.c", "memcpy(padded, from, count *", "memcpy(padded, from, (count - 1) *"),
    ),
    "tail read as a whole register": (
        "neon", ("vectors/vectors_neon.c", "return load_lanes(padded);", "return load_lanes(from);"),
    ),
    "last codes lost": (
        "neon", ("vectors/vectors_neon.c", "for (size_t j = 0; j < stride; j += 16) {\n            const int8x16_t q",
                 "for (size_t j = 0; j + 16 < stride; j += 16) {\n            const int8x16_t q"),
    ),
    "products of 16 bits that overflow": (
        "neon", ("vectors/vectors_neon.c", "veorq_u8(vld1q_u8(from), vdupq_n_u8(128))", "vld1q_u8(from)"),
    ),
    "a row of the filter off by one": (
        "neon", ("vectors/vectors_neon.c", "bits = {1, 2, 4, 8}", "bits = {2, 4, 8, 1}"),
    ),
    "dots of four rows in another order": (
        "dotprod", ("vectors/vectors_dotprod.c", "vpaddq_s32(vpaddq_s32(a, b), vpaddq_s32(c, d))",
                    "vpaddq_s32(vpaddq_s32(a, c), vpaddq_s32(b, d))"),
    ),
    "codes of the query forgotten": (
        "dotprod", ("vectors/vectors_dotprod.c", "return 128 * vaddvq_s32(sum);", "return 127 * vaddvq_s32(sum);"),
    ),
    "more rows than there are": (
        "dotprod", ("vectors/vectors_dotprod.c", "for (; i < count; i++, codes", "for (; i <= count; i++, codes"),
    ),
    "a run of eight carried from too near": (
        "neon", ("tokens/calibrated_neon.c", "BEFORE(now->letters4, was->letters4, 4)",
                 "BEFORE(now->letters4, was->letters4, 3)"),
    ),
    "what is before a chunk not looked at": (
        "neon", ("tokens/calibrated_neon.c", "text + from - known, known);", "text + from, 0 * known);"),
    ),
    "a byte after the end counted": (
        "neon", ("tokens/calibrated_neon.c", "vdupq_n_u8((uint8_t)(to - at))", "vdupq_n_u8((uint8_t)(to - at + 1))"),
    ),
    "rounds with the new state": (
        "neon", ("digest/sha256_armv8.c", "vsha256h2q_u32(efgh[l], abcd_now, sum)",
                 "vsha256h2q_u32(efgh[l], abcd[l], sum)"),
    ),
    "a block written before its beginning": (
        "scalar", ("digest/sha256.c", "4 * word, l->state", "4 * word - 1, l->state"), "wrote outside of its buffers",
    ),
    "a page read past an end": (
        "scalar", ("vectors/vectors_scalar.c", "lane[i % LANES] += (double)row[i] * (double)query[i];",
                   "lane[i % LANES] += (double)row[i] * (double)query[i] + 0.0 * row[i + 1024];"), "signal 11",
    ),
    "an instruction that the CPU lacks": (
        "neon", ("dispatch.c", "return &cal_vectors_neon;", "return &cal_vectors_dotprod;"), "signal 4",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what kernels are built from, compiled in one folder, so that a fault costs the one file it is in.

    Not optimised: that a fault is seen does not depend on it, and compiling is what takes the time here.
    """
    folder = tmp_path_factory.mktemp("arm64")
    shutil.copytree(arm64.ROOT / "csrc", folder / "csrc")
    shutil.copy(arm64.ROOT / "CMakeLists.txt", folder)
    return folder


@pytest.fixture
def planted(request: pytest.FixtureRequest, checkout: Path) -> Iterator[tuple[dispatch.Native, str | None]]:
    """The kernels with a fault, and what must be said of it."""
    path, (name, old, new), *said = MUTANTS[request.param]
    source = checkout / "csrc" / name
    text = source.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{name} has {text.count(old)} times {old!r}"
    source.write_text(text.replace(old, new), encoding="utf-8")
    program = arm64.kept_program(
        checkout, lambda: arm64.compile_kernels(checkout / "build", root=checkout, build_type="Debug")
    )
    remote = arm64.emulated(program, arm64.CPU_OF[path])
    try:
        yield arm64.kernels_on(remote, path), said[0] if said else None
    finally:
        remote.close()
        source.write_text(text, encoding="utf-8")


@pytest.mark.parametrize("planted", share(MUTANTS, 3), indirect=True)
def test_a_planted_fault_is_seen(planted: tuple[dispatch.Native, str | None]) -> None:
    native, said = planted
    with pytest.raises(AssertionError, match=said):
        check(native)


def test_everything_that_pointers_lead_to_is_sent() -> None:
    """New functions of caliber.h must stand in tests/support/kernels/remote.py, or their calls would read nothing."""
    for name in ffi.list_types()[0]:
        if any(field.type.kind == "pointer" for _, field in ffi.typeof(name).fields):
            assert name in FIELDS
    for function in FUNCTIONS.values():
        names = {parameter.name for parameter in function.parameters}
        for parameter in function.parameters:
            several = parameter.type.startswith("cal_") and parameter.name.removesuffix("s") + "_count" in names
            if several or parameter.type.count("*") > 1:
                assert (function.name, parameter.name) in ARGUMENTS
