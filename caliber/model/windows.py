"""Data types of results: context window with sections and decisions, search result with hits, commit position.

Source: C-049 to C-057, K-024, K-025.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from caliber.model.context import AssemblyAction, SectionType, SourceType
from caliber.model.errors import InvalidValue, Unavailable
from caliber.model.lazy_dataclass import dataclass
from caliber.model.references import ScopeId, TrajectoryId, WindowId
from caliber.model.storage import ResultStatus

if TYPE_CHECKING:
    from caliber.model.guard.validation import ValidationIssue


SNIPPET_CHARS: Final = 160
_LINE_CHARS: Final = 160
_TEXT_CHARS: Final = 80


def printed(begin: str, rest: str) -> str:
    """Return one line for an object that people print: its beginning, and as much of the rest as fits."""
    line = begin + " ".join(rest.split())
    return f"{line[: _LINE_CHARS - 2]}…)" if len(line) > _LINE_CHARS - 1 else f"{line})"


def snippet(text: str, words: Sequence[str]) -> str:
    """Return about 160 characters around the first place where words of the query stand close together."""
    length = SNIPPET_CHARS
    if len(text) <= length:
        return " ".join(text.split())
    folded = text.casefold()
    if len(folded) != len(text):  # folding changed lengths: places would not fit
        folded = text.lower() if len(text.lower()) == len(text) else text
    places = sorted(place for word in words if (place := folded.find(word)) >= 0)
    start = 0
    if places:
        # The window that holds the most of the first places.
        _, start = max((sum(p <= q < p + length for q in places), -p) for p in places)
        start = max(0, -start - length // 8)
    end = min(len(text), start + length)
    start = max(0, end - length)
    if start and not text[start - 1].isspace():
        start = text.find(" ", start, min(end, start + length // 8)) + 1 or start
    if end < len(text) and not text[end].isspace():
        space = text.rfind(" ", start, end)
        end = space if space > start + length // 2 else end
    body = " ".join(text[start:end].split())
    return ("… " if start else "") + body + (" …" if end < len(text) else "")


_renderers: list[Callable[[Any], str]] = []


@dataclass(frozen=True, slots=True)
class Position:
    """A commit boundary of one store: its epoch (a new one after restore or move) and its change sequence."""

    epoch: str
    sequence: int


@dataclass(frozen=True, slots=True)
class SourceRef:
    """A source record of a section's text.

    Units: relevance in the metric of the space, 1.0 when not scored; ``span`` the characters of the section's content
    that are this source, from and up to; ``day`` the day on which a recalled turn was said, or a turn of the user where
    the conversation shows days, None for others.
    """

    source_type: SourceType
    id: uuid.UUID | None
    version: int
    relevance: float
    tokens: int
    span: tuple[int, int] = (0, 0)
    day: date | None = None


@dataclass(frozen=True, slots=True)
class ContextSection:
    """One section of a window; ``token_count`` is the estimate of ``content`` itself (K-077).

    ``content`` ends with the separator to the next section, so that a window's text is its sections in a row.
    """

    section_id: uuid.UUID
    section_type: SectionType
    name: str
    content: str
    token_count: int
    sources: Sequence[SourceRef]
    priority: int
    compressible: bool


@dataclass(frozen=True, slots=True)
class AssemblyDecision:
    """The one final decision about one candidate. Units: ``tokens`` used, or that it would have used."""

    timestamp: datetime
    action: AssemblyAction
    source_type: SourceType
    target_id: uuid.UUID | None
    ordinal: int
    version: int
    reason: str
    rule_id: str
    tokens: int
    relevance: float
    rank: int
    breakdown: Mapping[str, float] = field(default_factory=dict, hash=False)
    """The contribution of each part of a search to the relevance; empty where no search computed it."""
    rule: str | None = None
    """The rule of injection that brought it; None where no rule did."""
    section: str = ""
    """The section that it is in, or would have been in."""


@dataclass(frozen=True, slots=True)
class CutOff:
    """The records that a source's limit or filter kept from becoming candidates (O-15).

    ``rule`` names the rule of injection whose it is, with how many it kept; ``condition`` is that rule's filter.
    """

    source_type: SourceType
    filter: str
    limit: int | None
    cutoff_score: float | None
    considered: int
    rule: str | None = None
    kept: int | None = None
    condition: str | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """One message of the window in conversation form, ready for ``to_messages``."""

    role: str
    content: str
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: tuple[dict[str, Any], ...] = ()
    thinking: tuple[dict[str, Any], ...] = ()
    """Blocks ``thinking`` and ``redacted_thinking`` of Anthropic's models, as they came."""
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class ContextWindow:
    """The context assembled for one prompt.

    Units: all token figures under the configured estimator; ``used_tokens`` is the sum of the sections'
    ``token_count`` plus ``message_overhead_tokens`` a message, also for a call without its result, and never exceeds
    ``max_tokens``. ``text`` is the sections' contents in a row; ``stable_prefix_tokens`` of it stay as they are when a
    turn like the largest one here is appended. ``messages``, ``assembly_trace`` and a section's ``sources`` behave as
    tuples and are made when they are first looked at.
    """

    window_id: WindowId
    trajectory_id: TrajectoryId
    scope_id: ScopeId | None
    assembled_at: datetime
    max_tokens: int
    used_tokens: int
    stable_prefix_tokens: int
    status: ResultStatus
    degraded: tuple[str, ...]
    sections: tuple[ContextSection, ...]
    text: str
    messages: Sequence[Message]
    assembly_trace: Sequence[AssemblyDecision]
    cut_offs: tuple[CutOff, ...]
    position: Position
    config_hash: str
    evaluator: str
    estimator: str
    expires_at: datetime | None = None
    issues: tuple[ValidationIssue, ...] = field(default=(), compare=False)
    """The findings about its records with ``validation_mode = "always"``, as of the assembly; a replay has none."""

    def __repr__(self) -> str:
        sections = ", ".join(f"{each.section_type} {each.token_count}" for each in self.sections)
        used = f"{self.used_tokens} of {self.max_tokens} tokens"
        return printed(f"ContextWindow({self.window_id}, {self.status}, {used}: ", sections or "empty")

    def to_messages(self, form: Literal["openai", "anthropic"] = "openai") -> list[dict[str, Any]]:
        """Return the window as message dicts that a provider accepts: context as one system message, then the turns.

        A turn of role ``system`` is a message of role ``user`` named ``system``: no turn gives a model instructions.
        Each call of a tool is followed by its result, or by one that says that there is none, and ids of calls are
        unique; a result without its call is a text. ``form="anthropic"`` leaves the system message out, which that API
        takes apart, and has blocks ``tool_use`` and ``tool_result`` for calls of tools, and the thoughts of the model.

        Raises: InvalidValue for another form.
        """
        from caliber.model.forms.messages import FORMS  # many processes show windows as texts alone

        if form not in FORMS:
            raise InvalidValue(field="form", reason=f"must be one of: {', '.join(FORMS)}")
        return FORMS[form](self.messages)

    def to_html(self) -> str:
        """Return the window as one HTML page that needs no network: budget, sections, sources, decisions.

        ``memory.windows.html(window_id)`` adds what only the store has: replay, the texts of records left out.
        """
        if not _renderers:
            raise Unavailable("nothing renders windows in this process: import caliber.api.caliber first")
        return _renderers[0](self)

    def _repr_html_(self) -> str:
        """Return the page for notebooks, in a frame: neither its styles nor its script reach the page around it."""
        import html  # few processes are notebooks

        return (
            f'<iframe title="Context window" sandbox="allow-scripts" srcdoc="{html.escape(self.to_html())}"'
            ' style="width:100%;height:640px;border:1px solid #8886;border-radius:8px"></iframe>'
        )


def render_pages_with(renderer: Callable[[Any], str]) -> None:
    """Register the renderer of ``ContextWindow.to_html``: the rooms below know how."""
    _renderers[:] = [renderer]


@dataclass(frozen=True, slots=True)
class SearchHit:
    """One answer of a search.

    Units: ``score`` in [0, 1], comparable within one result: the sum of ``breakdown``, which names what each leg and
    boost gave to it (``lent``: words of its neighbours). ``found_by`` names the legs that found it;
    ``around`` are the words that ``snippet`` is cut around.
    """

    id: uuid.UUID
    kind: str
    content: str
    score: float
    breakdown: dict[str, float]
    found_by: tuple[str, ...] = ()
    around: tuple[str, ...] = field(default=(), repr=False)

    def __repr__(self) -> str:
        return printed(f"SearchHit({self.kind} {self.id}, {self.score:.4f}: ", repr(self.content[:_TEXT_CHARS]))

    @property
    def snippet(self) -> str:
        """The piece of ``content`` that shows why it was found."""
        return snippet(self.content, self.around)


@dataclass(frozen=True, slots=True)
class QueryAnalysis:
    """The analysis of a query, and the weight of each leg; ``cut``: it was longer than what is read of one."""

    words: tuple[str, ...] = ()
    stop_words: tuple[str, ...] = ()
    phrases: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    days: tuple[date, date] | None = None
    asks_time: bool = False
    cut: bool = False
    weights: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Evidence:
    """The best evidence that any record gave for a query, and the least that the floor asks for.

    ``similarity`` None: nothing was near, or nothing was compared; ``least_similarity`` None: none was measured for the
    embedding space. ``words`` is the share of the query's words, by rarity, that one record covers.
    """

    similarity: float | None
    least_similarity: float | None
    words: float
    least_words: float

    def __str__(self) -> str:
        words = f"the best record holds {self.words:.2f} of the query's words by rarity"
        line = f"{words} ({self.least_words:g} is enough)"
        if self.similarity is None:
            return line
        enough = "" if self.least_similarity is None else f" ({self.least_similarity:.2f} is enough)"
        return f"{line}, the nearest has a similarity of {self.similarity:.2f}{enough}"


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Hits best first, and the position of the store they are true for. An outage is never an empty list."""

    hits: tuple[SearchHit, ...]
    status: ResultStatus
    reason: str | None
    position: Position
    pending: int = 0
    analysis: QueryAnalysis = field(default_factory=QueryAnalysis)
    below_floor: Evidence | None = None
    """The best evidence, where records have something in common with the query, and none enough."""
    hint: str | None = None
    """What the caller may try where nothing was found; it says nothing about records."""
    issues: tuple[ValidationIssue, ...] = ()
    """The findings about the hits with ``validation_mode = "always"``."""

    def __repr__(self) -> str:
        found = "; ".join(f"{hit.kind} {hit.score:.2f} {hit.content[:_TEXT_CHARS]!r}" for hit in self.hits)
        return printed(f"SearchResult({self.status}, {len(self.hits)} hits: ", found or self.reason or "nothing")
