"""The page on the Python API: no public call is without an example."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from caliber.admin.facet import Admin
from caliber.admin.inspection import Inspection
from caliber.agents.locks import LockService
from caliber.agents.mail.messages import Messages
from caliber.api.caliber import Caliber
from caliber.events.facet import Events

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
CODE = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))


def test_every_public_call_has_an_example() -> None:
    def public(kind: type) -> list[str]:
        return [name for name, _ in inspect.getmembers(kind) if not name.startswith("_")]

    for name in public(Caliber):
        assert re.search(rf"\b(memory|admin)\.{name}\b", CODE), name
    for facet, kind in (
        ("agents.locks", LockService),
        ("agents.messages", Messages),
        ("admin", Admin),
        ("admin.inspect", Inspection),
        ("events", Events),
    ):
        for name in public(kind):
            used = r"\." if isinstance(vars(kind).get(name), property) else r"\("
            assert re.search(rf"\.{facet}\.{name}{used}", CODE), f"{facet}.{name}"


def test_what_the_page_links_to_is_there() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (ROOT / "docs" / target).exists(), target
    assert "docs/api.md" in (ROOT / "README.md").read_text(encoding="utf-8")
