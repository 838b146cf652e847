"""Memories by name: one that every store has, or a declared one. Source: design, section 7."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caliber.memories.memories import Memory
from caliber.model import arguments
from caliber.model.access import Principal
from caliber.model.errors import InvalidValue
from caliber.model.hints import did_you_mean
from caliber.schema.memories import BUILT_IN

if TYPE_CHECKING:
    from caliber.engine.engine import Engine
    from caliber.search.service import Searching


def memory(engine: Engine, principal: Principal, searching: Searching, name: str) -> Memory:
    """Return a memory by its name. Raises: InvalidValue, with what was probably meant."""
    arguments.as_text(name, "name")
    catalog = engine.store.catalog
    bound = catalog.named(name)
    if bound is None:
        names = (*BUILT_IN, *catalog.memories)
        hint = did_you_mean(name, names, f"there are {', '.join(names)}", mark="")
        raise InvalidValue(field="name", reason=f"no memory is called that; {hint}")
    if name in BUILT_IN:
        return Memory(engine, principal, searching, bound)
    # Most stores have none, and opening one of them need not load what makes relations of them.
    from caliber.memories.records import Records

    return Records(engine, principal, searching, bound)
