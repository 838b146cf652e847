"""Choice of the memory blocks that a window always holds: those of everybody, of the task's user, and of its agent.

Source: P-016, P-017, P-022; docs/blocks.md.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from caliber.context.columns import VALUE
from caliber.context.gather.candidates import Part, made_part
from caliber.context.gather.scores import Scored
from caliber.context.inputs import AssemblyInputs, TextSource
from caliber.context.plan import PERSONA, AssemblyPlan
from caliber.model.trust import TrustLabel
from caliber.resident.mirror import RelationSnapshot
from caliber.resident.predicates import mask
from caliber.resident.snapshot import visible_rows
from caliber.schema.predicate import All, Comparison, Either, Operator, Predicate, one_of

_CORE: Final = Comparison("kind", Operator.EQUAL, "core")


def owned_by(owners: Iterable[bytes]) -> Predicate:
    """Return the condition that a block stands in the windows of some owners: it is core, and theirs or shared."""
    ids = [uuid.UUID(bytes=each) for each in sorted(owners)]
    shared = (Comparison("agents", Operator.CONTAINS, each) for each in ids)
    return All((_CORE, Either((one_of("owner", ids), *shared))))


def memory_blocks(inputs: AssemblyInputs, plan: AssemblyPlan, source: int, texts: TextSource) -> Part:
    """Return the blocks of the owners of a task, the oldest first."""
    blocks = inputs.snapshot[plan.records[source].name]
    rows = blocks.once(
        ("blocks", inputs.block_owners, inputs.config.recall.trust), lambda: _in_order(inputs, blocks, texts)
    )
    if len(rows):
        rows = rows[visible_rows(blocks, inputs.now_us, inputs.readers.over(blocks))[rows]]
    section = int(plan.section_of_source[PERSONA])
    first = {VALUE: np.arange(len(rows), 0, -1)}
    return made_part(source, section, blocks, rows, Scored(np.ones(len(rows), np.float32)), first)


def _in_order(inputs: AssemblyInputs, blocks: RelationSnapshot, texts: TextSource) -> NDArray[np.int64]:
    """Return the rows of the trusted blocks of some owners, the oldest first."""
    rows = np.flatnonzero(mask(owned_by(inputs.block_owners), blocks, {}, texts.texts))
    trusted = [label for label in TrustLabel if label.distrust <= inputs.config.recall.trust.distrust]
    rows = rows[np.isin(blocks.column("trust")[rows], [blocks.enum_code("trust", label) for label in trusted])]
    order: NDArray[np.int64] = np.lexsort((blocks.column("ordinal")[rows], blocks.column("created_at")[rows]))
    return rows[order]
