"""Facet ``memory.blocks``: texts under labels, which core ones every window of their owner begins with.

The view says whose blocks they are: ``memory.as_agent("planner").blocks`` those of an agent,
``memory.as_user("ana").blocks`` those of a user, ``memory.blocks`` everybody's.

Source: P-016 to P-024, P-089 to P-099; docs/blocks.md.
"""

from __future__ import annotations

import builtins
import functools
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from caliber.access.identities import OWN_KIND, entity_of
from caliber.access.owners import ids_of, names_of_reader
from caliber.blocks.model_tools import called, definitions
from caliber.context.plan import plan_of
from caliber.engine.engine import Engine
from caliber.memories.keys import id_at
from caliber.memories.records import Records
from caliber.model import arguments
from caliber.model.access import Principal, PrincipalKind
from caliber.model.errors import Conflict, ConstraintViolation, InvalidValue, NotFound
from caliber.model.events import CorrectionAction, EventFamily
from caliber.model.knowledge import NOBODY
from caliber.model.references import EntityRef, EntityType
from caliber.model.workspace.blocks import BlockChange, BlockKind, MemoryBlock
from caliber.schema.memories import BLOCKS, MemoryBinding
from caliber.schema.predicate import All, Comparison, Either, Operator
from caliber.schema.relations import EVENT, IDENTITY
from caliber.search.service import Searching
from caliber.storage.compile.conditions import Listing
from caliber.storage.write.unit_of_work import UnitOfWork

T = TypeVar("T")
MAX_CHARS: Final = 5_000
"""Most characters of a block that states no limit. Source: P-016."""
_LABEL_CHARS: Final = 100
_DESCRIPTION_CHARS: Final = 1_000
_MOST_CHARS: Final = 1_000_000
_ABSENT: Final = (
    'this store has no memory blocks: open it with caliber.open(…, memories=["blocks"], create=True), or add'
    ' include "caliber:blocks" to its program and run `caliber db migrate`'
)


class Blocks:
    """The blocks of one principal, and those shared with it. Safe to share between threads."""

    def __init__(self, engine: Engine, principal: Principal, searching: Searching) -> None:
        self._engine, self._principal, self._searching = engine, principal, searching

    @functools.cached_property
    def _bound(self) -> MemoryBinding:
        """The memory of blocks. Raises: InvalidValue for a store without it."""
        self._engine.check_open()
        bound = self._engine.store.catalog.named(BLOCKS)
        # Without them in the configuration, no window would show them.
        if bound is None or plan_of(self._engine.config).blocks is None:
            raise InvalidValue(field="blocks", reason=_ABSENT)
        return bound

    @functools.cached_property
    def _records(self) -> _BlockRecords:
        return _BlockRecords(self._engine, self._principal, self._searching, self._bound)

    # --- reading -----------------------------------------------------------------------------------

    def get(self, label: str) -> MemoryBlock:
        """Return the block of a label: one's own, else one that is shared with the agent, else everybody's.

        Raises: NotFound, InputError kinds.
        """
        return _block(self._located(label))

    def list(self, kind: BlockKind | str | None = None, *, everybody: bool = False) -> builtins.list[MemoryBlock]:
        """Return one's own blocks, those shared with the agent, and everybody's, the oldest first.

        ``everybody``: those of all owners, as far as the principal may see them.
        """
        wanted = None if kind is None else arguments.as_enum(kind, BlockKind, "kind")
        all_of_them = arguments.as_flag(everybody, "everybody")
        found = self._records.find() if all_of_them else self._within_reach()
        blocks = [_block(each) for each in found if wanted in (None, each.kind.value)]
        return sorted(blocks, key=lambda block: (block.created_at, block.label))

    def history(self, label: str) -> builtins.list[BlockChange]:
        """Return the changes of a block's text, the newest first. Raises: as ``get``."""
        key = self._located(label).record_id
        return self._engine.read(lambda uow: [*_changes(uow, key)])

    # --- writing -----------------------------------------------------------------------------------

    def create(
        self,
        label: str,
        text: str = "",
        *,
        description: str = "",
        kind: BlockKind | str = BlockKind.CORE,
        max_chars: int = MAX_CHARS,
        read_only: bool = False,
    ) -> MemoryBlock:
        """Create a block of the principal. A ``read_only`` one is changed by its user and the program, not by agents.

        Raises: Conflict where it has a block of that label; ConstraintViolation for a longer text; InputError kinds.
        """
        most = _limit(max_chars)
        fields = {
            "owner": self._registered(),
            "label": _label(label),
            "description": arguments.as_text(description, "description", allow_empty=True, limit=_DESCRIPTION_CHARS),
            "kind": arguments.as_enum(kind, BlockKind, "kind").value,
            "max_chars": most,
            "read_only": arguments.as_flag(read_only, "read_only"),
            "agents": (),
            "writers": (),
            **_content(arguments.as_text(text, "text", allow_empty=True), most),
        }
        earlier = self._mine()[1:]  # whose keys are others
        if earlier and self._engine.read(lambda uow: self._records.owned(uow, fields["label"], earlier)) is not None:
            raise Conflict(entity_type=BLOCKS, id=fields["label"], reason="there is a block of this label")
        return _block(self._records.put(fields, on_existing="error"))

    def replace(self, label: str, text: str, *, version: int | None = None) -> MemoryBlock:
        """Give a block another text. ``version`` is the one that it must still have.

        Raises: NotFound, InputError kinds; ConstraintViolation for a text beyond the limit, and a log; PermissionDenied
            for a block that the agent may not change; Conflict for another version.
        """
        new = arguments.as_text(text, "text", allow_empty=True)
        return self._edit(label, lambda block: _whole(block, new), version)

    def append(self, label: str, text: str, *, separator: str = "\n") -> MemoryBlock:
        """Add a text at the end of a block, after a separator unless the block is empty. Raises: as ``replace``."""
        new = _part(text, "text")
        between = arguments.as_text(separator, "separator", allow_empty=True)
        return self._edit(label, lambda block: f"{block.content}{between if block.content else ''}{new}")

    def insert(self, label: str, text: str, *, line: int) -> MemoryBlock:
        """Insert a text as lines before a line, the first of which is 0; behind the last one it is added.

        Raises: as ``replace``.
        """
        new, at = _part(text, "text"), arguments.as_whole(line, "line", 0)

        def inserted(block: Any) -> str:
            lines = block.content.split("\n") if block.content else []
            return _whole(block, "\n".join([*lines[:at], new, *lines[at:]]))

        return self._edit(label, inserted)

    def edit(self, label: str, old: str, new: str) -> MemoryBlock:
        """Replace a part of a block, which it must have exactly once.

        Raises: as ``replace``; InvalidValue for a part that is there never or several times.
        """
        before, after = _part(old, "old"), arguments.as_text(new, "new", allow_empty=True)

        def edited(block: Any) -> str:
            times = block.content.count(before)
            if times != 1:
                found = "is not in the block" if not times else f"is in the block {times} times: give more of it"
                raise InvalidValue(field="old", reason=f"{found}; it must be there exactly once")
            return _whole(block, block.content.replace(before, after))

        return self._edit(label, edited)

    def set_limit(self, label: str, max_chars: int) -> MemoryBlock:
        """Change the most characters of a block. Raises: as ``replace``."""
        most = _limit(max_chars)
        return self._changed(label, lambda block, _: {"max_chars": most, **_content(block.content, most)})

    def undo(self, label: str) -> MemoryBlock:
        """Take back the last change of a block's text; taken back again, it is there again.

        Raises: as ``replace``; InvalidValue for a text that never changed.
        """

        def last(block: Any, uow: UnitOfWork) -> dict[str, Any]:
            change = next(_changes(uow, block.record_id), None)
            if change is None:
                raise InvalidValue(field="label", reason="names a block whose text has not changed")
            return _content(_whole(block, change.before), block.max_chars)

        return self._changed(label, last)

    def restore(self, label: str, version: int) -> MemoryBlock:
        """Give a block the text that it had in a version of its history. Raises: as ``undo``; InvalidValue."""
        wanted = arguments.as_whole(version, "version", 1)

        def then(block: Any, uow: UnitOfWork) -> dict[str, Any]:
            if wanted > block.version:
                raise InvalidValue(field="version", reason=f"is not reached yet: the block has version {block.version}")
            later = [each for each in _changes(uow, block.record_id) if each.version > wanted]
            return _content(_whole(block, later[-1].before if later else block.content), block.max_chars)

        return self._changed(label, then)

    def share(self, label: str, agent: str | EntityRef, *, write: bool = False) -> MemoryBlock:
        """Show a block to another agent, which may change it too with ``write``.

        Raises: as ``replace``; ConstraintViolation where that agent has a block of the label, and for a user's block.
        """
        others = self._ids(entity_of(self._engine, agent, EntityType.AGENT, field="agent"))
        added = others[:1] if arguments.as_flag(write, "write") else ()
        if NOBODY in others:  # every window would show it
            raise InvalidValue(field="agent", reason="is no agent: everybody's blocks are those of the program")

        def shared(block: Any, uow: UnitOfWork) -> dict[str, Any]:
            if block.visible_to:
                raise ConstraintViolation(constraint="block_readers", reason="a user's block is that user's alone")
            if self._records.owned(uow, block.label, others) is not None:
                raise ConstraintViolation(
                    constraint="block_labels", reason=f"that agent has a block {block.label} of its own"
                )
            agents, writers = _without(block.agents, others), _without(block.writers, others)
            return {"agents": (*agents, others[0]), "writers": (*writers, *added)}

        return self._changed(label, shared, owner_only=True)

    def unshare(self, label: str, agent: str | EntityRef) -> MemoryBlock:
        """Show a block no longer to an agent. Raises: as ``replace``."""
        others = self._ids(entity_of(self._engine, agent, EntityType.AGENT, field="agent", register=False))
        lists = ("agents", "writers")
        return self._changed(
            label, lambda block, _: {name: _without(getattr(block, name), others) for name in lists}, owner_only=True
        )

    def delete(self, label: str) -> None:
        """Delete a block of one's own. Raises: as ``replace``."""
        self._write(label, lambda block, uow: self._records.remove(uow, block), owner_only=True)

    # --- a model's tools ---------------------------------------------------------------------------

    def tools(self, form: str = "openai") -> builtins.list[dict[str, Any]]:
        """Return the definitions of tools by which a model edits blocks, in the form ``openai`` or ``anthropic``."""
        return definitions(form)

    def call(self, name: str, arguments: Mapping[str, Any] | str) -> str:
        """Run a tool that a model called, and return what to answer it: also why it was refused.

        Raises: InvalidValue for a name that is no tool's; Unavailable and other errors of the store.
        """
        return called(self, name, arguments)

    # --- how ---------------------------------------------------------------------------------------

    def _registered(self) -> uuid.UUID:
        """Return the owner of new blocks; a new name is stored."""
        kind = None if self._principal.is_admin else OWN_KIND.get(self._principal.kind)
        return NOBODY if kind is None else entity_of(self._engine, self._principal.id, kind).id

    def _mine(self) -> tuple[uuid.UUID, ...]:
        """Return the owners of the principal's blocks: itself, and the principals that were merged into it."""
        identities = self._engine.snapshot()[IDENTITY.name]
        return tuple(uuid.UUID(bytes=key) for key in names_of_reader(identities, self._principal, None)[2])

    def _ids(self, entity: EntityRef) -> tuple[uuid.UUID, ...]:
        identities = self._engine.snapshot()[IDENTITY.name]
        return tuple(uuid.UUID(bytes=key) for key in ids_of(identities, entity.id.bytes))

    def _within_reach(self, **equal: Any) -> builtins.list[Any]:
        """Return the records of the blocks that the principal reads; ``equal``: of a label."""
        mine = self._mine()
        found = self._records.find(owner=[*{*mine, NOBODY}], **equal)
        for me in mine if self._principal.kind is PrincipalKind.AGENT else ():
            found += self._records.find(agents=me, **equal)
        return builtins.list({each.record_id: each for each in found}.values())

    def _located(self, label: str) -> Any:
        """Return the record of the block of a label. Raises: NotFound."""
        name, mine = _label(label), self._mine()
        return _nearest(name, self._within_reach(label=name), mine)

    def _edit(self, label: str, text: Callable[[Any], str], version: int | None = None) -> MemoryBlock:
        return self._changed(label, lambda block, _: _content(text(block), block.max_chars), version)

    def _changed(
        self,
        label: str,
        values: Callable[[Any, UnitOfWork], Mapping[str, Any]],
        version: int | None = None,
        *,
        owner_only: bool = False,
    ) -> MemoryBlock:
        """Change a block as it is in the transaction; ``values`` gives its new fields."""

        def change(block: Any, uow: UnitOfWork) -> Any:
            return self._records.change(uow, block, values(block, uow))

        return _block(self._write(label, change, version, owner_only=owner_only))

    def _write(
        self,
        label: str,
        work: Callable[[Any, UnitOfWork], T],
        version: int | None = None,
        *,
        owner_only: bool = False,
    ) -> T:
        """Do work on a block as it is in the transaction, once the principal may change it."""
        name, mine, expected = _label(label), self._mine(), arguments.as_version(version)

        def found(uow: UnitOfWork) -> T:
            block = self._records.located(uow, name, mine, expected)
            self._check(block, mine, owner_only=owner_only)
            return work(block, uow)

        return self._engine.write(found)

    def _check(self, block: Any, mine: Sequence[uuid.UUID], *, owner_only: bool) -> None:
        """Raise PermissionDenied unless the principal may change a block; ``owner_only``: as its owner."""
        principal = self._principal
        if principal.serves:
            return
        is_agent = principal.kind is PrincipalKind.AGENT
        # A user's words would stand in windows of others.
        shared = is_agent and (block.owner == NOBODY or not set(mine).isdisjoint(block.writers))
        if not (block.owner in mine or (shared and not owner_only)) or (block.read_only and is_agent):
            raise principal.denied("change", f"the block {block.label}")


class _BlockRecords(Records):
    """The records of blocks, found and changed as they are in a transaction."""

    def owned(self, uow: UnitOfWork, label: str, owners: Iterable[uuid.UUID]) -> Any | None:
        """Return the record of a label that the first of some owners has, or None."""
        keys = (id_at(self._own, {"owner": owner, "label": label}).bytes for owner in owners)
        return next((found for key in keys if (found := uow.find(self._relation, key)) is not None), None)

    def located(self, uow: UnitOfWork, label: str, mine: Sequence[uuid.UUID], version: int | None) -> Any:
        """Return the record that ``get`` would find. Raises: NotFound; Conflict for another version."""
        own = self.owned(uow, label, mine)
        found = [] if own is None else [own]
        if not found and NOBODY not in mine:
            shared = Either(tuple(Comparison("agents", Operator.CONTAINS, me) for me in mine))
            listing = Listing(
                self._relation, All((Comparison("label", Operator.EQUAL, label), shared)), self._engine.store.dialect
            )
            found = list(uow.listed(self._relation, listing))
            everybody = None if found else self.owned(uow, label, (NOBODY,))
            found += [] if everybody is None else [everybody]
        return self._read(uow, _nearest(label, found, mine).record_id, version)

    def change(self, uow: UnitOfWork, block: Any, values: Mapping[str, Any]) -> Any:
        """Change a record, and return it."""
        return self._change(uow, block, values, None)

    def remove(self, uow: UnitOfWork, block: Any) -> None:
        """Delete a record."""
        self._delete(uow, block)


def _nearest(label: str, found: Sequence[Any], mine: Sequence[uuid.UUID]) -> Any:
    """Return one's own record first, everybody's last. Raises: NotFound for none."""
    if not found:
        raise NotFound(f"there is no block {label}", entity_type="block", id=label)
    return min(found, key=lambda each: (each.owner == NOBODY, each.owner not in mine, each.created_at))


def _block(record: Any) -> MemoryBlock:
    return MemoryBlock(
        label=record.label,
        text=record.content,
        description=record.description,
        kind=BlockKind(record.kind.value),
        max_chars=record.max_chars,
        read_only=record.read_only,
        owner=None if record.owner == NOBODY else record.owner,
        agents=record.agents,
        writers=record.writers,
        created_at=record.created_at,
        updated_at=record.updated_at,
        version=record.version,
        block_id=record.record_id,
    )


def _label(label: Any) -> str:
    name = arguments.as_text(label, "label", limit=_LABEL_CHARS)
    if not name.isprintable() or name != name.strip():
        raise InvalidValue(field="label", reason="is one line of printable characters, without white space around it")
    return name


def _part(text: Any, field: str) -> str:
    part = arguments.as_text(text, field, allow_empty=True)
    if not part:
        raise InvalidValue(field=field, reason="must not be empty")
    return part


def _limit(max_chars: Any) -> int:
    most = arguments.as_whole(max_chars, "max_chars", 1)
    if most > _MOST_CHARS:
        raise InvalidValue(field="max_chars", reason=f"must be at most {_MOST_CHARS}")
    return most


def _content(text: str, most: int) -> dict[str, Any]:
    if len(text) > most:
        reason = f"the block has at most {most} characters, and this makes {len(text)}: shorten it, or set_limit"
        raise ConstraintViolation(constraint="block_limit", reason=reason)
    return {"content": text, "used": len(text)}


def _whole(block: Any, text: str) -> str:
    if block.kind.value == BlockKind.LOG and not text.startswith(block.content):
        raise ConstraintViolation(
            constraint="block_log", reason=f"{block.label} is a log, which only grows: append to it"
        )
    return text


def _without(ids: Sequence[uuid.UUID], others: Sequence[uuid.UUID]) -> tuple[uuid.UUID, ...]:
    return tuple(each for each in ids if each not in others)


def _changes(uow: UnitOfWork, key: uuid.UUID) -> Iterator[BlockChange]:
    """Yield the changes of a block's text, the newest first."""
    for event in reversed(uow.select_path(EVENT, "list_by_subject", key.bytes)):
        if event.family is not EventFamily.AUDIT:
            continue
        if event.payload.get("action") == CorrectionAction.DELETE:
            return  # of an earlier block of the label
        texts = event.payload.get("changes", {}).get("content")
        if texts is not None:
            yield BlockChange(event.payload["version"], event.created_at, event.principal, *map(str, texts))
