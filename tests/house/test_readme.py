"""The README and the pages it leads to: the Python runs as printed in an empty folder, and every name exists."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from support.cli_runs import caliber

from caliber.cli.app import COMMANDS
from caliber.config import profiles
from caliber.config.profiles import services
from caliber.dsl import load_config
from caliber.engine.refusals import provider_refusals
from caliber.llm.registry import EMBEDDING, SUMMARIZATION
from caliber.model import errors
from caliber.model.events import EventType

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def page(name: str) -> str:
    """Return a page of the documentation."""
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 150


def test_the_first_lines_remember_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("python")
    assert len([line for line in code.splitlines() if line.strip()]) == 6
    (printed,) = blocks("text")
    asked = re.sub(r"^with .*create=True.*\n(?:    .*\n)+", "", code, count=1, flags=re.MULTILINE)
    assert "remember" not in asked
    # Who runs them again has said the same twice, and reads it once; a process that only asks reads it too.
    for lines in (code, code, asked):
        done = subprocess.run([sys.executable, "-W", "error", "-c", lines], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        today = re.compile(r"\d{1,2} \w+ \d{4}")
        assert today.sub("today", done.stdout) == today.sub("today", printed)


@pytest.mark.prove
def test_the_first_lines_are_typed(tmp_path: Path, known_types: Path) -> None:
    (code,) = blocks("python")
    file = tmp_path / "seven_lines.py"
    for text, faults in ((code, 0), (code.replace('user="me"', "user=7"), 1)):
        file.write_text(text, encoding="utf-8")
        command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(known_types), str(file)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == faults, done.stdout + done.stderr


def test_every_command_is_named_and_every_named_command_exists() -> None:
    table = page("cli").split("| command |")[1].split("\n\n")[0]
    for name in COMMANDS:
        assert re.search(rf"`(caliber )?{name}\b", table), name
    for name in re.findall(r"`caliber ([a-z]+)", README + page("cli") + page("databases") + page("providers")):
        assert name in COMMANDS, name


def test_every_extra_is_in_the_list() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    items = page("providers").split("## Extras")[1]
    assert sorted(re.findall(r"^- `([\w-]+)`:", items, re.MULTILINE)) == sorted(extras)


def test_every_make_target_that_is_named_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for name in re.findall(r"`?make ([a-z]+)", README):
        assert re.search(rf"^{name}:", makefile, re.MULTILINE), name


def test_what_is_not_there_yet_is_named_and_is_not_there() -> None:
    """Names without a use would be taken for what the engine does."""
    said = page("guarantees").split("## Not built yet")[1]
    sources = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "caliber").rglob("*.py"))]
    kinds = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.CaliberError)}

    def made(name: str, text: str) -> bool:
        return f"{name}(" in text and re.search(rf"(?<!class )\b{name}\(", text) is not None

    leaves = {kind.__name__ for kind in kinds if not kind.__subclasses__()}
    idle = {name for name in leaves if not any(made(name, text) for text in sources)}
    assert {name for name in leaves if f"`{name}`" in said} == idle
    rest = "".join(text for text in sources if "class EventType(" not in text)
    unmade = {item.value for item in EventType if not re.search(rf"\bEventType\.{item.name}\b", rest)}
    assert {item.value for item in EventType if f"`{item.value}`" in said} == unmade


def test_the_databases_section_is_a_configuration_that_works() -> None:
    section = next(block for block in blocks("toml", page("databases")) if "postgres" in block)
    given = tomllib.loads(section)["storage"]
    config = profiles.reference(given["dsn"], **{f"storage.{name}": value for name, value in given.items()})
    assert {name: value for name, value in config.to_mapping()["storage"].items() if name in given} == given


def test_the_providers_section_is_a_configuration_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    section = next(block for block in blocks("toml", page("providers")) if "embedding_provider" in block)
    given = tomllib.loads(section)["embedding_provider"]
    config = profiles.reference("store.db", embedding_provider=given)
    monkeypatch.setenv("VOYAGE_API_KEY", "some-key")
    assert provider_refusals(config) == []
    assert config == profiles.reference("store.db", embedding_provider=dict(services.EMBEDDING["voyage"]))
    kinds = set(re.findall(r"`(\w+)`", page("providers").split("| kind |")[1].split("\n\n")[0])) - {"embed", "http"}
    assert kinds == {*EMBEDDING, *SUMMARIZATION} - {"hash"}


EMBEDS = """
provider words { provider_type: hash model: "test" dimensions: 256 options: {} }
config { embedding_provider: words }
"""


def programs() -> dict[str, str]:
    """Return the programs that each page of the documentation shows, without the omitted parts."""
    found = {}
    for path in sorted((ROOT / "docs").glob("*.md")):
        shown = re.findall(r"^```\n(.*?)^```", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
        whole = [text for text in shown if re.match(r"(memory|policy|inject) ", text) and "…" not in text]
        if whole:
            found[path.stem] = "".join(whole)
    return found


def test_the_programs_in_the_documentation_are_sound(tmp_path: Path) -> None:
    shown = programs()
    assert {"dsl", "injection", "memories", "policies", "trust"} <= shown.keys()
    for name, text in shown.items():
        file = tmp_path / f"{name}.caliber"
        file.write_text(f'caliber: "0.1.0" {{\n{EMBEDS}{text}}}\n', encoding="utf-8")
        caliber("check", file, "--base", "reference")


def test_the_page_on_tenants_runs_as_printed(tmp_path: Path) -> None:
    text = page("tenants")
    code = "\n".join(block for block in blocks("python", text) if "…" not in block and not block.startswith("except"))
    assert "caliber.aio.Tenants" in code
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "['user@example.com']\n", "")
    assert {file.name for file in tmp_path.iterdir()} == {"tenants", "tenants.db"}
    (section,) = (block for block in blocks("toml", text) if "[tenancy]" in block)
    (tmp_path / "app.toml").write_text(section)
    assert sorted(load_config(tmp_path / "app.toml").to_mapping()["tenancy"]["sources"]) == ["archive", "main"]
