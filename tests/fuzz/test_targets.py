"""The fuzz targets on fixed inputs, under AddressSanitizer and UndefinedBehaviorSanitizer. Issue 3, item 8.

Each runs the kernels with every set of CPU features on arrays that end where their allocation ends. What is planted
here in the kernels (reads and writes too far, overflow, wrong answers) must be found by the same inputs.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support import evidence
from support.kernels import fuzzing, native_builds
from support.kernels.native_builds import Change

from caliber.dsl import printer

from . import read_program, truncate_text

pytestmark = [pytest.mark.prove, pytest.mark.skipif(native_builds.COMPILER is None, reason="needs a C compiler")]

# Inputs made from the seed for each target: what takes about half a second.
RUNS = {
    "calibrated_tokens": 1000, "copy": 10_000, "keyword": 4000, "pairs": 100, "rank_and_fill": 1000,
    "sha256_spans": 2000, "token_spans": 10_000, "topk": 200, "uuid7": 5000,
}  # fmt: skip


class Built:
    """Kernels and targets, compiled once with sanitizers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tools = fuzzing.sanitizing()
        self.kernels = native_builds.compile_kernels(folder / "unchanged", self.tools)
        self.targets = {name: fuzzing.compile_target(folder, name, self.tools) for name in fuzzing.TARGETS}
        self.main = fuzzing.compile_target(folder, "standalone", self.tools)

    def program(self, folder: Path, name: str, changes: list[Change]) -> Path:
        kernels = self.kernels
        if changes:
            unchanged = self.folder / "unchanged"
            kernels = native_builds.compile_kernels(folder / "changed", self.tools, changes, unchanged=unchanged)
        return native_builds.link(folder / name, self.tools, [self.targets[name], self.main, *kernels])


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return Built(tmp_path_factory.mktemp("fuzz"))


def test_every_target_has_inputs() -> None:
    assert set(RUNS) == set(fuzzing.TARGETS)
    assert {path.name for path in fuzzing.CORPUS.iterdir()} == {*fuzzing.TARGETS, *fuzzing.PYTHON_TARGETS}
    for name in (*fuzzing.TARGETS, *fuzzing.PYTHON_TARGETS):
        assert fuzzing.corpus(name), name


@pytest.mark.parametrize("name", RUNS)
def test_a_target_finds_nothing(name: str, built: Built, tmp_path: Path) -> None:
    runs = evidence.scale(RUNS[name], 50 * RUNS[name])
    done = fuzzing.run_standalone(built.program(tmp_path, name, []), name, runs=runs, seed=evidence.seed())
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{runs + len(fuzzing.corpus(name))} inputs\n"


# Target, change of csrc/, and what must be said of it.
OUT_OF_BOUNDS = "ERROR: AddressSanitizer: "
DIFFERENT = "does not hold"
FAULTS: dict[str, tuple[str, Change, str]] = {
    "a byte after a span is read": (
        "sha256_spans",
        ("digest/sha256.c", "memcpy(l->tail, l->data + whole * BLOCK, rest);",
         "memcpy(l->tail, l->data + whole * BLOCK, rest + 1);"),
        OUT_OF_BOUNDS,
    ),
    "an offset after the last is read": (
        "sha256_spans",
        ("digest/sha256.c", "running[i] = running[--active];",
         "(void)offset_at(s, next + 1), running[i] = running[--active];"),
        OUT_OF_BOUNDS,
    ),
    "a row's tail is loaded as a whole register": (
        "topk",
        ("vectors/vectors_avx2.c", "memcpy(padded, from, count * sizeof(float));",
         "memcpy(padded, from, sizeof padded);"),
        OUT_OF_BOUNDS,
    ),
    "scratch of a search is counted too small": (
        "topk",
        ("vectors/topk.c", "aligned(waiting_capacity(k) * sizeof(candidate)) +", "aligned(256 * sizeof(candidate)) +"),
        OUT_OF_BOUNDS,
    ),
    "a mask is read for one row too many": (
        "topk",
        ("vectors/topk.c", "for (; i < count; i++) {\n        bits |=", "for (; i <= count; i++) {\n        bits |="),
        OUT_OF_BOUNDS,
    ),
    "codes are read for one row too many": (
        "pairs",
        ("vectors/pairs.c", "end - start, queries[q].codes, dots);",
         "end - start + (end - start < CAL_BLOCK), queries[q].codes, dots);"),
        OUT_OF_BOUNDS,
    ),
    "scratch of a ranking is counted too small": (
        "rank_and_fill",
        ("rank/rank.c", "return n * each + sections * sizeof(int64_t);", "return n * each;"),
        OUT_OF_BOUNDS,
    ),
    "a group's cost wraps": ("rank_and_fill",
                             ("rank/rank.c", "int64_t cost = 0, members = 0;", "int32_t cost = 0, members = 0;"),
                             "runtime error: signed integer overflow"),
    "entropy is read beyond its end": (
        "uuid7",
        ("uuid7/uuid7.c", "entropy += ENTROPY_PER_ID, out", "entropy += ENTROPY_PER_ID + 1, out"),
        OUT_OF_BOUNDS,
    ),
    "a tail is loaded as a whole register where a byte is missing": (
        "calibrated_tokens",
        ("tokens/calibrated_avx2.c", "if (at + 32 <= readable) {", "if (at + 32 <= readable + 1) {"),
        OUT_OF_BOUNDS,
    ),
    "a joiner looks for the next word beyond the end": (
        "keyword",
        ("keyword/words.c", "if ((size_t)(end - p) <= size) {", "if (size == 3 && end - p < 3) {"),
        OUT_OF_BOUNDS,
    ),
    "a value of an array is read beyond its column": (
        "copy",
        ("copy/encode.c", "memcpy(out + 4, c->values + from, size);", "memcpy(out + 4, c->values + from, size + 1);"),
        OUT_OF_BOUNDS,
    ),
    "a field is written where there is no room for its length": (
        "copy",
        ("copy/encode.c", "fits && capacity - at >= 4 && capacity - at - 4 >= bytes;",
         "fits && capacity - at >= bytes;"),
        OUT_OF_BOUNDS,
    ),
    "a field is read that is not there to its end": (
        "copy", ("copy/decode.c", "if (in->left - 4 < size) {", "if (in->left < size) {"), OUT_OF_BOUNDS
    ),
    "an array is believed its number of elements": (
        "copy", ("copy/decode.c", "if (size - at < 4) {", "if (at > size + 4) {"), OUT_OF_BOUNDS
    ),
    "a character is looked for beyond its text": ("copy", ("copy/text.c", "|| left < length)", "|| left + 1 < length)"),
                                                  OUT_OF_BOUNDS),
    "a column without room is filled": (
        "copy",
        ("copy/decode.c", "if (f->bytes > column->size - before || (", "if (f->bytes > column->size + 1 - before || ("),
        OUT_OF_BOUNDS,
    ),
    "an estimate is rounded down": (
        "token_spans",
        ("tokens/tokens.c", "(rest * denominator + numerator - 1) / numerator", "rest * denominator / numerator"),
        DIFFERENT,
    ),
    "a clock that goes back is followed": (
        "uuid7", ("uuid7/uuid7.c", "if (unix_ms > state->unix_ms) {", "if (unix_ms != state->unix_ms) {"), DIFFERENT
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", evidence.share(FAULTS, 3))
def test_a_planted_fault_is_found(fault: str, built: Built, tmp_path: Path) -> None:
    name, change, said = FAULTS[fault]
    if not native_builds.runs_here(change[0]):
        pytest.skip("this machine does not run the file with the fault")
    # Always the same inputs: whether a fault is found must not depend on chance.
    done = fuzzing.run_standalone(built.program(tmp_path, name, [change]), name, runs=4 * RUNS[name], seed=1)
    assert done.returncode != 0
    assert said in done.stderr


def test_without_clang_make_fuzz_says_what_to_install() -> None:
    command = ["make", "--no-print-directory", "fuzz", "CLANG=no-such-compiler"]
    done = subprocess.run(command, cwd=native_builds.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "apt-get install clang" in done.stdout + done.stderr


@pytest.mark.parametrize("path", fuzzing.corpus("truncate_text"), ids=lambda path: Path(path).name)
def test_truncation_keeps_its_promises_on_the_committed_texts(path: str) -> None:
    truncate_text.check(Path(path).read_bytes())


LAID_OUT = fuzzing.corpus("read_program")


@pytest.mark.parametrize("path", LAID_OUT, ids=lambda path: Path(path).name)
def test_the_language_keeps_its_promises_on_the_committed_texts(path: str) -> None:
    read_program.check(Path(path).read_bytes())


def test_the_language_keeps_its_promises_on_programs_with_a_few_tokens_changed() -> None:
    chance = random.Random(evidence.seed())
    for _ in range(evidence.scale(40, 4_000)):
        read_program.check(b"\3" + chance.randbytes(1 + 3 * chance.randint(0, 6)))


@pytest.mark.parametrize(
    ("where", "planted"),
    [("_condition", lambda value, within: printer.value_text(value)), ("quoted", lambda text: f'"{text}"')],
    ids=["a bracket that is left out", "an escape that is left out"],
)
def test_a_fault_planted_in_the_layout_is_found(
    where: str, planted: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [
        data[1:].decode("utf-8", "replace") for data in map(Path.read_bytes, map(Path, LAID_OUT)) if data[0] % 4 == 0
    ]
    sound = [text for text in texts if not read_program.refusals(read_program.laid_out, text)]
    monkeypatch.setattr(printer, where, planted)
    assert any(is_found(text) for text in sound)


def is_found(text: str) -> bool:
    try:
        return bool(read_program.refusals(read_program.laid_out, text))
    except AssertionError:
        return True
