"""Verifier of candidate contradictions: rules first, then the language model of the summarization provider.

A provider that hangs, fails or answers with anything but a bool changes nothing: the rules' verdicts stand, and similar
pairs that the rules do not judge are reported as unverified (C-261).
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from typing import Final

from caliber.llm.protocols import SummarizationProvider
from caliber.model.deadline import remaining_s, within
from caliber.model.errors import Unavailable
from caliber.model.lazy_dataclass import dataclass
from caliber.model.process.interrupts import let_through
from caliber.pcp.pairs import Candidate
from caliber.pcp.readings import Readings

_SHARE: Final = 0.5
"""The part of a call's deadline that a provider may use."""
_MOST_HANGING: Final = 16
"""Threads of this process that wait for providers, at most: one that hangs keeps its thread."""
asking: Final = threading.BoundedSemaphore(_MOST_HANGING)


@dataclass(frozen=True, slots=True)
class JudgedPair:
    """A pair that contradicts itself, ``confirmed``, or that may."""

    candidate: Candidate
    confirmed: bool
    reason: str


class Verifier:
    """Judges pairs of statements. Units: ``timeout_ms`` for all that the provider is asked; None asks it nothing."""

    def __init__(self, readings: Readings, provider: SummarizationProvider | None, timeout_ms: int | None) -> None:
        self._readings = readings
        # A provider that only quotes has no model: it judges by the same rules.
        models = provider is not None and getattr(provider, "quotes", False) is not True
        self._provider = provider if models and timeout_ms is not None else None
        self._timeout_s = 0 if timeout_ms is None else timeout_ms / 1_000

    def judge(self, candidates: Sequence[Candidate]) -> list[JudgedPair]:
        """Return the pairs that contradict each other, in their order, and those that may."""
        verdicts = self._readings.verdicts(candidates)
        asked = dict.fromkeys(
            place
            for place, (each, verdict) in enumerate(zip(candidates, verdicts, strict=True))
            if self._provider is not None and (verdict is not None or each.similarity is not None)
        )
        answers = self._ask(asked, candidates)
        out = []
        for place, (each, verdict) in enumerate(zip(candidates, verdicts, strict=True)):
            answer = answers.get(place)
            if verdict is not None:
                denied = answer is False
                reason = f"{verdict.kind}: {verdict.reason}"
                out.append(JudgedPair(each, not denied, reason + (", which the provider denies" if denied else "")))
            elif answer is True:
                out.append(JudgedPair(each, True, "so says the provider"))
            elif place in asked and answer is None:
                out.append(JudgedPair(each, False, "the provider gave no answer"))
        return out

    def _ask(self, places: Collection[int], candidates: Sequence[Candidate]) -> dict[int, bool]:
        """Return the provider's answers, as far as they come in time, from a thread of its own.

        Raises: Unavailable while ``_MOST_HANGING`` threads wait for providers that do not answer.
        """
        provider = self._provider
        if provider is None or not places:
            return {}
        left = remaining_s()
        seconds = self._timeout_s if left is None else min(self._timeout_s, left * _SHARE)
        answers: dict[int, bool] = {}
        stopped = False
        if not asking.acquire(blocking=False):
            raise Unavailable(reason=f"{_MOST_HANGING} checks wait for a provider that does not answer")

        def ask() -> None:
            try:
                ask_each()
            finally:
                asking.release()

        def ask_each() -> None:
            with within(seconds):
                for place in places:
                    if stopped:
                        return
                    try:
                        answer = provider.verify_contradiction(
                            candidates[place].first.text, candidates[place].second.text
                        )
                    except Exception as error:  # whatever it is: that pair stays unverified
                        let_through(error)
                        continue
                    if isinstance(answer, bool):
                        answers[place] = answer

        thread = threading.Thread(target=ask, name="caliber-verifier", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no thread can be made
            asking.release()
            raise
        thread.join(seconds)
        stopped = True  # the thread asks no more
        return dict(answers)
