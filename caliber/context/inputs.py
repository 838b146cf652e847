"""Inputs of an assembly (snapshot, configuration, query, masks), those it records, and protocols of sources of texts.

Equal inputs give equal windows.

Source: C-217, C-447, C-467, design section 5 (Determinism).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from caliber.config import CaliberConfig
from caliber.config.cron import zone_of
from caliber.context.conversation import moment_of
from caliber.context.plan import RECORDS, Measures
from caliber.context.rules import OneShot
from caliber.kernels.evaluator import Allowed
from caliber.model.knowledge import NOBODY
from caliber.model.lazy_dataclass import dataclass
from caliber.model.references import ScopeId, SpaceId, TrajectoryId, WindowId
from caliber.model.windows import CutOff, Position
from caliber.resident.mirror import RelationSnapshot
from caliber.resident.snapshot import ResidentSnapshot
from caliber.text.dates import Moment

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class TextSource(Protocol):
    """Source of the texts of mirrored rows; ``ResidentMemory`` is one."""

    def texts(self, snapshot: RelationSnapshot, numbers: Sequence[int]) -> list[Any]:
        """Return the texts of rows; those that were evicted are read back in one batch."""
        ...


class ContentSource(Protocol):
    """Source of record contents for replay: as they were at the version in the window."""

    def content(self, relation: str, ordinal: int, version: int) -> Mapping[str, Any] | None:
        """Return the content columns of a row as of a version, as drivers store them; None if they are deleted."""
        ...

    def identity(self, relation: str, ordinal: int, known: uuid.UUID | None) -> uuid.UUID | None:
        """Return ``known`` or the id of a row, also of a deleted one whose content is kept; None for a hidden one."""
        ...


@dataclass(frozen=True, slots=True)
class Masked:
    """The masks that an assembly is given, as a search asks for them."""

    masks: Mapping[str, Allowed]
    used_by: tuple[bytes, ...]

    def over(self, rows: RelationSnapshot) -> Allowed | None:
        """Return the mask over a relation, or None when everything may be seen."""
        return self.masks.get(rows.relation.name)


@dataclass(frozen=True)
class AssemblyInputs:
    """Everything that determines a window's bytes.

    Shapes: masks by relation over the rows of ``snapshot[relation]``, what the principal may see, of relations of which
    that is not everything; query_embedding ``f32[d]``. Units: ``as_of_us`` is valid time, ``now_us`` the clock;
    ``config_hash`` is hexadecimal.
    """

    snapshot: ResidentSnapshot
    trajectory_id: TrajectoryId
    max_tokens: int
    as_of_us: int
    now_us: int
    window_id: WindowId
    config: CaliberConfig
    config_hash: str
    principal: str
    masks: Mapping[str, Allowed] = field(default_factory=dict)
    query: str | None = None
    query_embedding: NDArray[np.float32] | None = None
    without_vector: str | None = None
    """The reason why the query has no vector, if there is a specific one."""
    vector_expected: bool = True
    """Whether a query without a vector is to be called degraded: the last user turn may have none yet."""
    query_from: str = "caller"
    """Where the query came from: the caller, the last user turn, or the goal of the task."""
    space_id: SpaceId | None = None
    extra_sections: Mapping[str, str | None] = field(default_factory=dict)
    totals: Mapping[str, int] = field(default_factory=dict)
    """How many records of a kind there are to choose from, where the snapshot holds only some of them."""
    degraded: tuple[str, ...] = ()
    """Inputs that the caller could not supply."""
    once: tuple[OneShot, ...] = ()
    """Rules for this window alone."""
    used_by: tuple[bytes, ...] = (NOBODY.bytes,)
    """The ids whose uses of records count."""
    block_owners: frozenset[bytes] = frozenset()
    """The ids whose memory blocks stand in the window."""
    user_names: frozenset[str] = frozenset()
    """The names of the task's user, and the id."""

    @cached_property
    def moment(self) -> Moment:
        """The instant of the task's last message, or now, with the zone of the user's days."""
        return moment_of(self.snapshot, self.trajectory_id.bytes, self.now_us, zone_of(self.config.time_zone))

    @cached_property
    def readers(self) -> Masked:
        """The records that the principal may see."""
        return Masked(self.masks, self.used_by)


@dataclass(frozen=True, slots=True)
class WindowFacts:
    """The recorded inputs of an assembly, and the reports of its candidate sources.

    Shapes: query_embedding ``f32[d]``. Units: microseconds since 1970; ``config_hash`` is hexadecimal.
    """

    window_id: WindowId
    trajectory_id: TrajectoryId
    scope_id: ScopeId | None
    principal: str
    position: Position
    config_hash: str
    evaluator: str
    measures: Measures
    max_tokens: int
    now_us: int
    as_of_us: int
    query: str | None
    query_embedding: NDArray[np.float32] | None
    space_id: SpaceId | None
    extra_sections: Mapping[str, str]
    cut_offs: tuple[CutOff, ...]
    degraded: tuple[str, ...]
    once: tuple[OneShot, ...] = ()
    query_from: str = "caller"
    """Where the query came from: the caller, the last user turn, or the goal of the task."""
    declared: Mapping[int, str] = field(default_factory=dict)
    """The relations of declared memories by the source that stands for each."""

    def relation_of(self, source: int) -> str | None:
        """Return the relation behind a source, or None for a text that is no record."""
        relation = RECORDS.get(source)
        return self.declared.get(source) if relation is None else relation.name
