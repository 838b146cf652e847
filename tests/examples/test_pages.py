"""Every page of the documentation: its Python runs as printed, its settings and programs are accepted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from caliber.config import profiles
from caliber.dsl import load_config

pytestmark = pytest.mark.prove

DOCS = Path(__file__).resolve().parents[2] / "docs"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
DEFINITION = re.compile(r"(?:memory|policy|inject|caliber:)")
PAGES = {path.stem: FENCE.findall(path.read_text(encoding="utf-8")) for path in sorted(DOCS.glob("*.md"))}
BLOCKS = {
    name: [code for language, code in fences if language == "python"]
    for name, fences in PAGES.items()
    if name != "python-api"  # signatures, generated from the code and compared with it by `make lint`
}
ALONE = "observability"  # each block of this page is a program of its own
WITHIN = "backends"  # the first block of this page is a module of tests

CHECKOUT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
"""The environment of a program that uses what lies in the checkout: the contract, the private server."""

STORE = """
import caliber
from caliber.model.references import EntityRef
memory = caliber.open(caliber.profiles.chat_companion("page.db"), create=True)
"""
DECLARED = """
import caliber
from pathlib import Path
from caliber.dsl import load_config
Path("page.caliber").write_text('caliber: "0.1.0" { config { base: "chat-companion" storage { path: "page.db" } } %s }')
memory = caliber.open(load_config("page.caliber"), create=True)
scope_id = memory.current_scope(memory.start_trajectory("Write about Ada", user="ana").trajectory_id).scope_id
"""
CONFLICT = """
ana = memory.acting_as(caliber.Principal.user("ana@example.com"))
for place in ("Berlin", "Madrid"):
    ana.add_note(entity="Ana", entity_type="person", note_type="fact", content=f"Ana lives in {place}.",
        confidence=0.9, source_trajectory_ids=[task])
"""
ARTIFACT = """
artifact = memory.create_artifact(
    memory.current_scope(task).scope_id, artifact_type="custom", content="x = 1", extraction_method="explicit"
)
"""
TALK = """
class model:
    chat = staticmethod(lambda messages: messages[-1]["content"].upper())
task = memory.start_trajectory("Talk", user="ana")
scope, said = memory.current_scope(task.trajectory_id), "Which pump do we have?"
"""
CHAT = 'memory.remember([{"role": "user", "content": "Ines moved the backups in May."}], user="ana")\n'
MOVED = """
config = caliber.profiles.reference("moved.db", tenancy={}, embedding_provider=None)
memory = caliber.open(config, tenant="alice", create=True)
try:
    raise caliber.model.errors.Unavailable("this tenant has moved", reason="moved")
"""
PLANNED = 'scope_id = memory.current_scope(memory.start_trajectory("Plan", user="ana").trajectory_id).scope_id\n'
INSPECTED = STORE + "from caliber.search.service import SearchEngine\n"

BEFORE: dict[str, dict[int, str]] = {
    "agents": {0: STORE, 2: PLANNED},
    "backends": {1: INSPECTED},
    "forgetting": {0: STORE},
    "jobs": {0: STORE},
    "learning": {0: STORE},
    "memories": {0: DECLARED % " ".join(PAGES["memories"][0][1].split())},
    "pcp": {1: "window = memory.assemble_context(task)\n", 3: CONFLICT, 4: ARTIFACT},
    "search": {0: STORE + CHAT},
    "tenants": {3: MOVED},
    "windows": {0: STORE + TALK},
}
"""What a block takes for granted and no block before it has made, by page and number of the block."""

SHOWN: dict[str, tuple[str, ...]] = {
    "access": ("2 0",),
    "api": ("CALIBER_STORAGE unavailable closed False", "heard trajectory_start"),
    "chat-agent": (
        "add works at Feedzai", "['lives in Porto']", "'assistant', 'tool']", "{'answer': 'I read ",
    ),
    "learning": ("add lives in Berlin", "add is allergic to nuts"),
    "tenants": ("['user@example.com']",),
}  # fmt: skip
LOGGED = (
    "caliber assemble_context",
    'caliber_operation_duration_seconds_count{caliber_operation_name="search"',
    "operation append_turn ",
    "caliber.api a store in sqlite",
)


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program in an empty folder, warnings being errors."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=folder, env=CHECKOUT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("page", [name for name, blocks in BLOCKS.items() if blocks and name != ALONE])
def test_a_page_runs_as_printed(page: str, tmp_path: Path) -> None:
    before = BEFORE.get(page, {})
    programs = [before.get(at, "") + code for at, code in enumerate(BLOCKS[page]) if (page, at) != (WITHIN, 0)]
    done = run("\n".join(programs), tmp_path)
    assert not done.stderr
    for shown in SHOWN.get(page, ()):
        assert shown in done.stdout, shown


def test_the_module_of_tests_on_backends_runs_as_printed(tmp_path: Path) -> None:
    (tmp_path / "my_backend.py").write_text(
        "from caliber.backends import backend\n\n\n"
        "def __getattr__(name):\n    return getattr(backend('sqlite'), name)\n"
    )
    (tmp_path / "test_mine.py").write_text(BLOCKS[WITHIN][0])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", "mandatory"]
    ran = subprocess.run(command, cwd=tmp_path, env=CHECKOUT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("at", range(len(BLOCKS[ALONE])))
def test_each_program_on_observability_runs_as_printed(at: int, tmp_path: Path) -> None:
    assert len(BLOCKS[ALONE]) == len(LOGGED)
    code = BLOCKS[ALONE][at]
    done = run(code, tmp_path)
    assert LOGGED[at] in (done.stderr if "logging" in code else done.stdout)
    assert not done.stderr or "logging" in code


SETTINGS = [(name, code) for name, fences in PAGES.items() for language, code in fences if language == "toml"]


@pytest.mark.parametrize(("page", "text"), SETTINGS, ids=[f"{name}-{text.split()[0]}" for name, text in SETTINGS])
def test_settings_are_accepted(page: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in re.findall(r'"env:(\w+)"', text):
        monkeypatch.setenv(name, "postgresql://127.0.0.1/some")
    given = tmp_path / "given.toml"
    given.write_text(text if "base =" in text else f'base = "reference"\n{text}')
    assert load_config(given) != profiles.reference("caliber.db")


PROGRAMS = {
    name: [code for language, code in fences if not language and "…" not in code and DEFINITION.match(code)]
    for name, fences in PAGES.items()
}


@pytest.mark.parametrize("page", [name for name, programs in PROGRAMS.items() if programs])
def test_the_programs_of_a_page_compile(page: str, tmp_path: Path) -> None:
    whole = [code for code in PROGRAMS[page] if code.startswith("caliber:")]
    rest = "\n".join(code for code in PROGRAMS[page] if code not in whole)
    (tmp_path / "policies.caliber").write_text('caliber: "0.1.0" {}')
    for code in [*whole, f'caliber: "0.1.0" {{ config {{ base: "reference" }}\n{rest}\n}}']:
        (tmp_path / "page.caliber").write_text(code)
        assert load_config(tmp_path / "page.caliber") != profiles.reference(tmp_path / "caliber.db")


def test_every_page_is_linked_to() -> None:
    """From README, or from a page that it leads to."""
    root = DOCS.parent
    found, look = set(), [root / "README.md"]
    while look:
        page = look.pop()
        for target in re.findall(r"\]\(([^)#\s]+\.md)", page.read_text(encoding="utf-8")):
            linked = (page.parent / target).resolve()
            assert linked.exists(), (page.name, target)
            if linked not in found:
                found.add(linked)
                look.append(linked)
    assert {DOCS / f"{name}.md" for name in PAGES} <= found
    readme = (root / "README.md").read_text(encoding="utf-8")
    for name in ("chat-agent", "observability", "api"):
        assert f"docs/{name}.md" in readme
    assert "../examples/chat.py" in (DOCS / "chat-agent.md").read_text(encoding="utf-8")
