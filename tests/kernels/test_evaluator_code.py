"""Compiled code: made once, kept under ``cache_dir``, loaded by the next process, and never in the way of opening.

Source: issue 3, item 7; design section 6; decision 0042.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cli_runs import caliber_json
from support.configs import config
from support.inspection import replaced

import caliber
from caliber.kernels import Evaluator, open_evaluator
from caliber.kernels import evaluator as evaluators
from caliber.kernels.evaluator import NUMPY, compile_evaluator
from caliber.kernels.jit.code import CompiledCode
from caliber.model.errors import ExtraNotInstalled, InvalidConfigValue

pytestmark = pytest.mark.prove

PACKAGE = Path(caliber.__file__).parent
LOOPS = 11


def run(source: str, **environment: str) -> Any:
    """Run a program in a process of its own; return the JSON it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(source)],
        capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def settings(compiled_code: Path, **options: Any) -> Any:
    return config(":memory:", resident__evaluator="numba", cache_dir=str(compiled_code), **options)


@pytest.fixture
def kept(numba: Evaluator, tmp_path: Path) -> Path:
    """A cache of one's own with everything in it."""
    shutil.copytree(numba.code.folder, tmp_path / "cache" / "numba" / numba.code.folder.name)
    return tmp_path / "cache"


@pytest.fixture
def few(numba: Evaluator, monkeypatch: pytest.MonkeyPatch) -> int:
    """Compile two loops only, where all of them would only take longer."""
    from caliber.kernels.jit import compiled

    some = {name: compiled.SIGNATURES[name] for name in ("relevance", "carry")}
    monkeypatch.setattr(compiled, "SIGNATURES", some)
    return len(some)


def works(evaluator: Evaluator) -> bool:
    values, present = np.array([-0.5, 0.25, 2.0, 0.75], np.float32), np.array([True, True, True, False])
    return evaluator.relevance(values, present, np.float32(0.5)).tolist() == [0.0, 0.25, 1.0, 0.5]


# --- importing ----------------------------------------------------------------------------------


def test_numba_is_imported_by_the_first_store_that_asks_for_it(compiled_code: Path, numba: Evaluator) -> None:
    source = f"""
    import json, sys
    import caliber
    seen = ["numba" in sys.modules]
    from caliber.kernels import walk, csr, Edges, Evaluator
    from caliber.config import profiles
    off = {{"embedding.embed": {{"default": "off"}}}}
    plain = profiles.reference(":memory:", embedding_provider=None, cache_dir={str(compiled_code)!r}, **off)
    caliber.open(plain).close()
    seen.append("numba" in sys.modules)
    with caliber.open(plain.with_overrides(**{{"resident.evaluator": "numba"}})) as memory:
        seen.append("numba" in sys.modules)
        with caliber.open(plain) as other:
            names = [memory.admin.stats()["evaluator"], other.admin.stats()["evaluator"]]
    from caliber.kernels.evaluator import open_evaluator
    loops = open_evaluator("numba", None).loops
    hits = sum(sum(loop.stats.cache_hits.values()) for loop in vars(loops).values())
    misses = sum(sum(loop.stats.cache_misses.values()) for loop in vars(loops).values())
    import numba
    print(json.dumps([seen, names, hits, misses, numba.config.CACHE_DIR]))
    """
    seen, names, hits, misses, directory = run(source)
    assert seen == [False, False, True]
    assert names == ["numba", "numpy"], "two stores of one process, each with its own"
    assert (hits, misses) == (LOOPS, 0), "a second process compiles nothing"
    assert directory == "", "what others compile with Numba is no business of ours"


def test_compiled_code_stays_under_the_cache_folder(numba: Evaluator, compiled_code: Path) -> None:
    assert numba.code.folder.is_relative_to(compiled_code)
    assert len(list(numba.code.folder.glob("*.code"))) == LOOPS
    assert not list(PACKAGE.rglob("*.nb[ci]"))
    if os.name == "posix":
        assert numba.code.folder.stat().st_mode & 0o077 == 0


# --- what keeps code from being kept ------------------------------------------------------------


def test_damaged_code_is_made_again(kept: Path) -> None:
    # never loaded: it would run as it is
    folder = next((kept / "numba").iterdir())
    changed, cut, forged, blocked = sorted(folder.glob("keep_members-*.code"))[:4]
    raw = changed.read_bytes()
    changed.write_bytes(raw[:2_000] + bytes((raw[2_000] ^ 1,)) + raw[2_001:])
    cut.write_bytes(b"")
    content = pickle.dumps(("another program's pickle",))
    forged.write_bytes(hashlib.sha256(content).digest() + content)
    blocked.unlink()
    blocked.mkdir()
    evaluator = compile_evaluator(kept)
    code = evaluator.code
    assert (code.loaded, code.compiled) == (LOOPS - 4, 4)
    said = "\n".join(code.problems)
    for file, word in ((changed, "damaged"), (cut, "damaged"), (forged, "cannot be loaded"), (blocked, "read")):
        assert any(file.name in problem and word in problem for problem in code.problems), (file.name, said)
    assert "cannot be written to" in said
    for dtype in (np.int64, np.float64, np.int32, np.int8, np.uint8):
        mask = np.ones(3, np.bool_)
        evaluator.keep_members(mask, np.array([1, 2, 3], dtype), np.array([2], dtype))
        assert mask.tolist() == [False, True, False]
    again = compile_evaluator(kept).code
    assert (again.loaded, again.compiled) == (LOOPS - 1, 1), "all but the one whose place is taken"


def test_code_of_other_sources_is_left_alone(kept: Path, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from caliber.kernels.jit import compiled

    folder = next((kept / "numba").iterdir())
    before = {file: file.read_bytes() for file in folder.iterdir()}
    monkeypatch.setattr(compiled.numba, "__version__", "0.0")
    code = compile_evaluator(kept).code
    assert (code.loaded, code.compiled, code.problems) == (0, few, ())
    assert code.folder.parent == folder.parent
    assert code.folder != folder
    assert {file: file.read_bytes() for file in folder.iterdir()} == before


def test_a_cache_folder_that_cannot_be_made(few: int, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    evaluator = compile_evaluator(tmp_path / "file")
    assert (evaluator.code.loaded, evaluator.code.compiled) == (0, few)
    assert "cannot be made" in evaluator.code.problems[0]
    assert works(evaluator)


@pytest.mark.skipif(os.name != "posix", reason="POSIX modes")
def test_a_cache_folder_that_others_can_write_to(few: int, kept: Path) -> None:
    folder = next((kept / "numba").iterdir())
    folder.chmod(0o777)
    evaluator = compile_evaluator(kept)
    assert (evaluator.code.loaded, evaluator.code.compiled) == (0, few)
    assert "by others" in evaluator.code.problems[0]
    assert works(evaluator)


@pytest.mark.skipif(os.name != "posix" or not hasattr(os, "geteuid"), reason="POSIX modes")
def test_a_cache_folder_that_can_only_be_read(few: int, kept: Path, tmp_path: Path) -> None:
    folder = next((kept / "numba").iterdir())
    empty = tmp_path / "empty" / "numba" / folder.name
    empty.mkdir(parents=True, mode=0o700)
    for place in (folder, empty):
        place.chmod(0o500)
    try:
        code = compile_evaluator(kept).code
        assert (code.loaded, code.problems) == (few, ()), "reading is enough when everything is there"
        code = compile_evaluator(tmp_path / "empty").code
        assert code is not None
        if os.geteuid():  # root writes where it likes
            assert (code.loaded, code.compiled) == (0, few)
            assert "cannot be written to" in code.problems[0]
    finally:
        for place in (folder, empty):
            place.chmod(0o700)


def test_a_numba_that_does_not_ask_for_kept_code_is_reported(
    few: int, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from numba.core.caching import NullCache

    from caliber.kernels.jit import compiled

    monkeypatch.setattr(compiled.CodeStore, "of", lambda self, function: NullCache())
    evaluator = compile_evaluator(kept)
    assert (evaluator.code.loaded, evaluator.code.compiled) == (0, few)
    assert "does not ask for kept code" in evaluator.code.problems[0]
    assert works(evaluator)


def test_processes_that_start_together_share_one_cache(few: int, tmp_path: Path) -> None:
    program = f"""
    import json, sys
    from pathlib import Path
    from caliber.kernels.jit import compiled
    compiled.SIGNATURES = {{name: compiled.SIGNATURES[name] for name in ("relevance", "carry")}}
    from caliber.kernels.evaluator import compile_evaluator
    code = compile_evaluator(Path({str(tmp_path)!r})).code
    print(json.dumps([code.loaded + code.compiled, code.problems]))
    """
    running = [
        subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    assert [json.loads(process.communicate(timeout=120)[0]) for process in running] == [[few, []]] * 3
    after = compile_evaluator(tmp_path)
    assert (after.code.loaded, after.code.problems) == (few, ())
    assert not list(after.code.folder.glob("tmp*"))
    assert works(after)


# --- what keeps the evaluator from being chosen -------------------------------------------------


def test_without_the_extra_opening_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # C-004: what is missing is said, with the command that brings it; never replaced silently
    real = evaluators.importlib.util.find_spec
    monkeypatch.setattr(
        evaluators.importlib.util, "find_spec", lambda name, *rest: None if name == "numba" else real(name, *rest)
    )
    with pytest.raises(ExtraNotInstalled, match=r"pip install 'caliber-memory\[jit\]'") as caught:
        caliber.open(settings(tmp_path))
    assert caught.value.context["extra"] == "jit"
    with pytest.raises(ExtraNotInstalled):
        open_evaluator("numba", tmp_path)
    assert open_evaluator("numpy", tmp_path) is NUMPY
    assert list(tmp_path.iterdir()) == []


def test_a_numba_that_does_not_work_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "numba").mkdir()
    (tmp_path / "numba" / "__init__.py").write_text("raise ImportError('Numba needs NumPy 1.99 or less')")
    source = f"""
    import json
    from pathlib import Path
    from caliber.kernels import open_evaluator
    from caliber.model.errors import InvalidConfigValue
    try:
        open_evaluator("numba", Path({str(tmp_path)!r}))
    except InvalidConfigValue as error:
        print(json.dumps([str(error), type(error.__cause__).__name__]))
    """
    said, cause = run(source, PYTHONPATH=str(tmp_path))
    assert "resident.evaluator = numba" in said
    assert "Numba needs NumPy 1.99 or less" in said
    assert "use 'numpy'" in said
    assert cause == "ImportError"


def test_a_compiler_that_is_switched_off_is_an_error(
    numba: Evaluator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from numba import config as numba_config

    monkeypatch.setattr(numba_config, "DISABLE_JIT", 1)
    with pytest.raises(InvalidConfigValue, match="NUMBA_DISABLE_JIT is set"):
        compile_evaluator(tmp_path)


def test_compiled_loops_take_no_other_types(numba: Evaluator) -> None:
    with pytest.raises(TypeError):
        numba.loops.relevance(np.zeros(2), np.ones(2, np.bool_), np.float32(0), np.zeros(2, np.float32))


# --- what people see ----------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, numba: Evaluator, compiled_code: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a store that uses the compiled evaluator."""
    monkeypatch.chdir(tmp_path)
    caliber_json("init")
    text = f'cache_dir = "{compiled_code}"\n{Path("caliber.toml").read_text()}\n[resident]\nevaluator = "numba"\n'
    Path("caliber.toml").write_text(text)
    caliber_json("create")
    return tmp_path


def test_stats_and_doctor_name_the_evaluator(here: Path, numba: Evaluator, compiled_code: Path) -> None:
    assert caliber_json("check")["ok"]
    found = caliber_json("stats")
    assert found["evaluator"] == "numba"
    assert found["compiled_loops"]["folder"].startswith(str(compiled_code))
    report = caliber_json("doctor")
    line = next(item for item in report["findings"] if item["text"].startswith("evaluator"))
    assert line["level"] == "ok"
    assert line["text"].startswith("evaluator numba: ")
    assert str(compiled_code) in line["text"]
    code = CompiledCode(compiled_code, 0, LOOPS, 2.0, ("x cannot be written to: Read-only file system",))
    with replaced(evaluators, "compiled", Evaluator("numba", numba.loops, code)):
        report = caliber_json("doctor")
    line = next(item for item in report["findings"] if item["text"].startswith("evaluator"))
    assert line["level"] == "hint"
    assert "Read-only file system" in line["text"]
    assert "cache_dir" in line["advice"]


def test_check_lists_a_missing_extra(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = evaluators.importlib.util.find_spec
    monkeypatch.setattr(
        evaluators.importlib.util, "find_spec", lambda name, *rest: None if name == "numba" else real(name, *rest)
    )
    document = caliber_json("check", code=1)
    assert any("caliber-memory[jit]" in fault["message"] for fault in document["faults"])
