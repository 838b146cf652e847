"""Command ``explain --html``: the page in a file, and mistakes in the call."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cli_runs import caliber, caliber_json

LINES = "\n".join(
    f'{{"role": "{role}", "content": "{content}"}}'
    for role, content in (("user", "Which driver does SQLite need?"), ("assistant", "apsw, they say."))
)


@pytest.fixture
def window(here: Path) -> str:
    """The id of a window of an imported conversation."""
    (here / "chat.jsonl").write_text(LINES, "utf-8")
    caliber("ingest", "chat", "chat.jsonl")
    return str(caliber_json("context", "latest")["window_id"])


def test_the_page_is_written(window: str, here: Path) -> None:
    said = caliber("explain", "latest", "--html", "window.html").stdout
    assert said == "wrote window.html: open it in a browser\n"
    page = (here / "window.html").read_text("utf-8")
    assert window in page
    assert "apsw, they say." in page
    assert "replayed byte for byte" in page
    assert (here / "window.html").stat().st_mode & 0o077 == 0
    assert caliber_json("explain", window, "--html", "again.html") == {"window_id": window, "file": "again.html"}
    assert (here / "again.html").read_text("utf-8") == page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--html", "x.html", "--exclusion", "latest"], "without --exclusion"),
        (["--html", "nowhere/x.html"], "nowhere/x.html"),
    ],
)
def test_mistakes_write_nothing(window: str, here: Path, arguments: list[str], message: str) -> None:
    before = sorted(here.iterdir())
    done = caliber("explain", window, *arguments, code=2 if "--exclusion" in arguments else 1)
    assert message in done.stderr
    assert sorted(here.iterdir()) == before
