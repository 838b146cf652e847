"""Dosage of a window that exists: a smaller window made of it, with the decisions that made it smaller.

Assembly keeps the limits by itself. A caller that falls back to a model with a smaller context, or holds a window of an
earlier configuration, has it cut here without another assembly: by sections, the highest priority first.
Source: C-273 to C-277, K-083, K-084; docs/pcp.md.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from caliber.config import CaliberConfig
from caliber.context.plan import AssemblyPlan, plan_of, source_type_of
from caliber.context.texts import quoted
from caliber.context.window import MEMORY, section_id
from caliber.kernels import uuid7
from caliber.kernels.tokens.counting import truncate_to_tokens
from caliber.model.context import AssemblyAction, SectionType, SourceType
from caliber.model.errors import InvalidValue
from caliber.model.ids import WindowId
from caliber.model.search import ResultStatus
from caliber.model.time import from_us
from caliber.model.windows import AssemblyDecision, ContextSection, ContextWindow, Message, SourceRef
from caliber.text.key_sentences import key_sentences

_NOW: Final = SectionType.CURRENT
_SPOKEN: Final = (SectionType.USER, _NOW)
_FIXED: Final = (*_SPOKEN, SectionType.SYSTEM)
"""Sections that are never compressed."""


@dataclass(slots=True)
class _Piece:
    """The text of one source, with what stands before it."""

    before: str
    text: str
    ref: SourceRef
    message: Message | None = None


@dataclass(slots=True)
class _Part:
    """A section that is being cut. ``follows``: it is in the message after the older turns."""

    section: ContextSection
    pieces: list[_Piece]
    follows: bool

    @property
    def body(self) -> str:
        return "".join(piece.before + piece.text for piece in self.pieces)

    @property
    def is_spoken(self) -> bool:
        return self.section.section_type in _SPOKEN

    def take_out(self, chosen: Sequence[_Piece]) -> None:
        """Take pieces out; the header stays before the first one that is left."""
        gone = set(map(id, chosen))
        header = self.pieces[0].before if self.pieces else ""
        self.pieces = [each for each in self.pieces if id(each) not in gone]
        if self.pieces:
            self.pieces[0].before = header


class Dosage:
    """Applies limits to one window. ``cut_critical`` is True once sections that always stay had to be cut."""

    def __init__(self, window: ContextWindow, config: CaliberConfig, max_tokens: int | None, now_us: int) -> None:
        dosage = config.pcp.dosage
        self._window = window
        self._overhead = config.assembly.message_overhead_tokens
        self._least, self._ratio = config.assembly.truncate_min_tokens, dosage.compress_ratio
        self._plan: AssemblyPlan = plan_of(config, ())
        self._critical = dosage.critical_priority
        self._at = from_us(now_us)
        self._decisions: list[AssemblyDecision] = []
        self._separator = self._plan.separator
        self._parts = self._split()
        self.limit = min(dosage.max_context_tokens, window.max_tokens if max_tokens is None else max_tokens)
        self.cut_critical = False

    def apply(self) -> ContextWindow:
        """Return the window itself where it keeps every limit, else a new one that does."""
        self._count()
        if not self._decisions and self._window.used_tokens <= self.limit:
            return self._window
        kept: list[_Part] = []
        for part in sorted(self._parts, key=lambda each: -each.section.priority):
            kept.append(part)
            if self._over(kept) <= 0 or self._is_critical(part):
                continue
            if part.is_spoken:
                self._shed(part, kept, "budget_limit", least=0)
            elif not self._compress(part, kept):
                self._exclude(part, part.pieces, "budget_limit", f"did not fit in {self.limit} tokens")
        if self._over(kept) > 0:
            self.cut_critical = True
            # Of two parts of the conversation the older one is cut first.
            for part in sorted(kept, key=lambda each: (each.section.priority, each.section.section_type is _NOW)):
                if part.is_spoken:
                    self._shed(part, kept, "critical_limit", least=1)
                self._cut(part, kept)
        return self._made()

    def _is_critical(self, part: _Part) -> bool:
        return self._critical is not None and part.section.priority >= self._critical

    # --- reading the window ----------------------------------------------------------------------

    def _split(self) -> list[_Part]:
        """Return the sections in pieces. Raises: InvalidValue for a window whose messages are not those of its text."""
        sections, messages = self._window.sections, list(self._window.messages)
        for section in sections[:-1]:
            self._separator = section.content[max(ref.span[1] for ref in section.sources) :]
        parts = [_Part(section, _pieces(section), False) for section in sections]
        older, current = (
            [piece for part in parts if part.section.section_type is kind for piece in part.pieces] for kind in _SPOKEN
        )
        others = [part for part in parts if not part.is_spoken]
        more = len(messages) - len(older) - len(current)
        first = messages[0] if messages else None
        bodies = [part.body for part in others]
        lead = next(
            (
                count
                for count in range(len(others), 0, -1)
                if first is not None
                and first.role == "system"
                and first.content == self._separator.join(bodies[:count])
            ),
            0,
        )
        if more != bool(lead) + (lead < len(others)):
            raise InvalidValue(field="window", reason="has other messages than its sections; assemble it again")
        for part in others[lead:]:
            part.follows = True
        del messages[: bool(lead)]
        del messages[len(older) : len(older) + (lead < len(others))]
        for piece, message in zip((*older, *current), messages, strict=True):
            piece.message = message
        return parts

    # --- measuring -------------------------------------------------------------------------------

    def _tokens(self, text: str) -> int:
        return self._plan.tokens(int(self._plan.estimator.lengths_of([text])[0]))

    def _over(self, kept: list[_Part]) -> int:
        """Return by how many tokens a window of some parts exceeds the limit."""
        parts = [part for part in self._parts if part.pieces and any(part is each for each in kept)]
        contents = [part.body + (self._separator if part is not parts[-1] else "") for part in parts]
        spoken = sum(len(part.pieces) for part in parts if part.is_spoken)
        texts = len({part.follows for part in parts if not part.is_spoken})
        counted = [*map(self._tokens, contents)]
        # Tokens of a whole may be more than those of its parts, where lengths do not add up.
        used = max(sum(counted), self._tokens("".join(contents)))
        return used + self._overhead * (spoken + texts) - self.limit

    # --- cutting ---------------------------------------------------------------------------------

    def _count(self) -> None:
        """Take out the least relevant records beyond the limits of their kinds."""
        for sources, limit in self._plan.most:
            kinds = {source_type_of(source) for source in sources}
            found = [
                (part, piece)
                for part in self._parts
                for piece in part.pieces
                if not part.is_spoken and piece.ref.source_type in kinds and piece.ref.id is not None
            ]
            for part, piece in sorted(found, key=lambda each: -each[1].ref.relevance)[limit:]:
                self._exclude(part, [piece], "dosage_limit", f"better records fill the {limit} places of its kind")

    def _exclude(self, part: _Part, pieces: list[_Piece], rule: str, reason: str) -> None:
        for piece in pieces:
            self._decide(part, piece, AssemblyAction.EXCLUDE, rule, reason)
        part.take_out(pieces)

    def _shed(self, part: _Part, kept: list[_Part], rule: str, *, least: int) -> None:
        """Take out the oldest turns until the rest fits, but for ``least``; results of a tool go with its call."""
        pieces, low, high = list(part.pieces), 0, max(0, len(part.pieces) - least)
        while low < high:
            middle = (low + high) // 2
            part.pieces = pieces[middle:]
            low, high = (low, middle) if self._over(kept) <= 0 else (middle + 1, high)
        while 0 < low < len(pieces) - least and (said := pieces[low].message) is not None and said.role == "tool":
            low += 1
        part.pieces = pieces
        self._exclude(part, pieces[:low], rule, f"older turns left: {self.limit} tokens hold no more")

    def _compress(self, part: _Part, kept: list[_Part]) -> bool:
        """Compress the records of a section; return whether the window fits with it then."""
        whole = [piece.text for piece in part.pieces]
        if self._ratio is None or not part.section.compressible or part.section.section_type in _FIXED:
            return False
        for piece in part.pieces:
            piece.text = self._key_sentences(piece.text, int(self._tokens(piece.text) * self._ratio))
        if self._over(kept) > 0 or not all(piece.text for piece in part.pieces):
            for piece, text in zip(part.pieces, whole, strict=True):
                piece.text = text
            return False
        for piece in part.pieces:
            reason = f"did not fit whole: compressed (pcp.dosage.compress_ratio {self._ratio})"
            self._decide(part, piece, AssemblyAction.COMPRESS, "overflow_compress", reason)
        return True

    def _key_sentences(self, text: str, most: int) -> str:
        spans = key_sentences(text, "", lambda spans: self._tokens(quoted(text, spans)) <= most)
        return quoted(text, spans) if spans else truncate_to_tokens(text, most, estimator=self._plan.estimator)

    def _cut(self, part: _Part, kept: list[_Part]) -> None:
        """Cut a section that always stays, from its end, until the window fits."""
        while part.pieces and (over := self._over(kept)) > 0:
            piece = part.pieces[-1]
            whole, room = piece.text, self._tokens(piece.text) - over
            while room >= self._least and self._over(kept) > 0:
                piece.text = truncate_to_tokens(whole, room, estimator=self._plan.estimator)
                room -= max(1, self._over(kept))
            reason = f"sections that always stay exceed {self.limit} tokens"
            if self._over(kept) > 0:
                piece.text = whole
                self._exclude(part, [piece], "critical_limit", reason)
                continue
            self._decide(part, piece, AssemblyAction.TRUNCATE, "critical_limit", reason)
            if piece.message is not None:
                label = whole.index(piece.message.content) if piece.message.content in whole else 0
                piece.message = replace(piece.message, content=piece.text[label:])

    def _decide(self, part: _Part, piece: _Piece, action: AssemblyAction, rule: str, reason: str) -> None:
        ref, section = piece.ref, part.section.name
        known = self._known.get((ref.source_type, ref.id, section))
        self._decisions.append(
            AssemblyDecision(
                timestamp=self._at,
                action=action,
                source_type=ref.source_type,
                target_id=ref.id,
                ordinal=0 if known is None else known.ordinal,
                version=ref.version,
                reason=reason,
                rule_id=rule,
                tokens=ref.tokens if action is AssemblyAction.EXCLUDE else self._tokens(piece.text),
                relevance=ref.relevance,
                rank=0 if known is None else known.rank,
                rule=None if known is None else known.rule,
                section=section,
            )
        )

    @cached_property
    def _known(self) -> dict[tuple[SourceType, uuid.UUID | None, str], AssemblyDecision]:
        return {(each.source_type, each.target_id, each.section): each for each in self._window.assembly_trace}

    # --- the new window --------------------------------------------------------------------------

    def _made(self) -> ContextWindow:
        window, new_id = self._window, WindowId(uuid7())
        parts = [part for part in self._parts if part.pieces]
        sections = []
        for part in parts:
            content = part.body + (self._separator if part is not parts[-1] else "")
            refs, at = [], 0
            for piece in part.pieces:
                start = at + len(piece.before)
                at = start + len(piece.text)
                refs.append(replace(piece.ref, tokens=self._tokens(piece.text), span=(start, at)))
            key, tokens = section_id(new_id, part.section.name), self._tokens(content)
            sections.append(
                replace(part.section, section_id=key, content=content, token_count=tokens, sources=tuple(refs))
            )
        spoken = [
            [piece.message for part in parts if part.section.section_type is kind for piece in part.pieces]
            for kind in _SPOKEN
        ]
        lead, following = (
            self._separator.join(part.body for part in parts if not part.is_spoken and part.follows is follows)
            for follows in (False, True)
        )
        messages = (
            *((Message("system", lead),) if lead else ()),
            *spoken[0],
            *((Message("user", following, MEMORY),) if following else ()),
            *spoken[1],
        )
        stable = 0
        for old, new in zip(window.sections, sections, strict=False):
            if old.content != new.content or stable + new.token_count > window.stable_prefix_tokens:
                break
            stable += new.token_count
        return replace(
            window,
            window_id=new_id,
            assembled_at=self._at,
            max_tokens=self.limit,
            used_tokens=sum(each.token_count for each in sections) + self._overhead * len(messages),
            stable_prefix_tokens=stable,
            status=window.status if sections else ResultStatus.EMPTY,
            sections=tuple(sections),
            text="".join(each.content for each in sections),
            messages=messages,
            assembly_trace=(*window.assembly_trace, *self._decisions),
            expires_at=None,
        )


def _pieces(section: ContextSection) -> list[_Piece]:
    out, at = [], 0
    for ref in section.sources:
        start, end = ref.span
        out.append(_Piece(section.content[at:start], section.content[start:end], ref))
        at = end
    return out
