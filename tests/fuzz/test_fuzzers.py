"""The fuzz targets under libFuzzer, and under atheris what is Python: make fuzz, make soak. Issue 3, item 8."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import evidence
from support.kernels import fuzzing

SECONDS = int(os.environ.get("CALIBER_FUZZ_SECONDS") or (60 if evidence.soaking() else 0))

pytestmark = [
    pytest.mark.prove,
    pytest.mark.skipif(SECONDS == 0, reason="only with make fuzz or make soak"),
    pytest.mark.skipif(fuzzing.CLANG is None, reason="needs clang with libFuzzer (Debian: apt-get install clang)"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzzers")


@pytest.fixture(scope="module")
def figures() -> Iterator[dict[str, fuzzing.Outcome]]:
    """The statistics of each fuzzer; recorded once all are done."""
    seen: dict[str, fuzzing.Outcome] = {}
    started = time.monotonic()
    yield seen
    rows = {
        f"{name}: inputs tried, code edges reached, inputs kept": f"{one.executed}, {one.covered}, {one.inputs}"
        for name, one in sorted(seen.items())
    }
    assert fuzzing.CLANG is not None
    version = subprocess.run([fuzzing.CLANG, "--version"], capture_output=True, text=True, check=True).stdout
    evidence.record(
        "fuzzing",
        "Kernels, truncation and the language fuzzed; what is C under AddressSanitizer and UndefinedBehaviorSanitizer",
        {
            "seed": evidence.seed(),
            "seconds a target": SECONDS,
            **rows,
            "findings": sum(one.returncode != 0 for one in seen.values()),
            "fuzzers": f"libFuzzer of {version.splitlines()[0]}; atheris for {' and '.join(fuzzing.PYTHON_TARGETS)}",
            **evidence.kernels(),
            "seconds": round(time.monotonic() - started),
        },
    )


@pytest.mark.parametrize("name", [*fuzzing.TARGETS, *fuzzing.PYTHON_TARGETS])
def test_a_fuzzer_finds_nothing(name: str, folder: Path, figures: dict[str, fuzzing.Outcome]) -> None:
    if name in fuzzing.PYTHON_TARGETS and importlib.util.find_spec("atheris") is None:
        pytest.skip("needs atheris: make fuzz installs it")
    done = fuzzing.fuzz(name, folder, seconds=SECONDS, seed=evidence.seed())
    assert done.returncode == 0, done.output[-6000:]
    assert done.executed > 100
    assert done.covered > 40
    figures[name] = done


def test_a_fuzzer_finds_a_planted_fault(folder: Path, tmp_path: Path) -> None:
    """A counter that stops one short of 2^12 - 1."""
    change = ("uuid7/uuid7.c", "#define COUNTER_MAX 0xFFFU", "#define COUNTER_MAX 0xFFEU")
    done = fuzzing.fuzz("uuid7", tmp_path, seconds=SECONDS, seed=evidence.seed(), changes=[change], keep=False)
    assert done.returncode != 0
    assert "does not hold" in done.output
