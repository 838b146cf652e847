"""Every test of kernels on the extension itself, built with sanitizers: make sanitize, make soak. Issue 3, item 8."""

from __future__ import annotations

import re
import shutil
import sys
import time
from pathlib import Path

import pytest
from support import evidence
from support.kernels import sanitized

pytestmark = [
    pytest.mark.prove,
    pytest.mark.soak,
    pytest.mark.skipif(sys.platform != "linux", reason="preloads GCC's sanitizers, as Linux can"),
]


def test_the_tests_of_kernels_run_clean_under_sanitizers() -> None:
    started = time.monotonic()
    done = sanitized.run_kernel_tests(
        sanitized.build(sanitized.ROOT / "build" / "sanitized"), f"--hypothesis-seed={evidence.seed()}"
    )
    assert (done.returncode, done.reports) == (0, ""), done.output[-6000:] + done.reports
    passed = re.search(r"(\d+) passed", done.output)
    evidence.record(
        "sanitizers",
        "All tests of kernels on an extension built with AddressSanitizer and UndefinedBehaviorSanitizer",
        {
            "seed": evidence.seed(),
            "tests": int(passed[1]),
            "reports of the sanitizers": done.reports.count("ERROR") + done.reports.count("runtime error"),
            "flags": sanitized.FLAGS,
            **evidence.kernels(),
            "seconds": round(time.monotonic() - started),
        },
    )


def test_a_planted_read_too_far_is_reported(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    shutil.copy(sanitized.ROOT / "CMakeLists.txt", source)
    shutil.copytree(sanitized.ROOT / "csrc", source / "csrc")
    file = source / "csrc" / "vectors" / "vectors_scalar.c"
    text = file.read_text(encoding="utf-8")
    read = "for (size_t i = 0; i < dimensions; i++) {\n        lane[i % LANES] += (double)row[i]"
    assert text.count(read) == 1
    file.write_text(text.replace(read, read.replace("i < dimensions", "i < dimensions + 1")), encoding="utf-8")
    extension = sanitized.build(tmp_path / "built", source)
    done = sanitized.run(extension, ["tests/kernels/test_vectors_properties.py", "-k", "sums_of_random_rows", "-x"])
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.reports
    assert "vectors_scalar.c" in done.reports
