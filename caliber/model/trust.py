"""Enum of trust labels (the origin of content), their order, and the least trusted of several."""

from __future__ import annotations

from enum import StrEnum


class TrustLabel(StrEnum):
    """The origin of content, from the most to the least trusted; the order of the members is the order of trust.

    Output of a model has no label of its own: it derives from the model's input. Source: design, section 10.
    """

    SYSTEM = "system"
    USER = "user"
    TOOL = "tool"
    WEB = "web"

    @property
    def distrust(self) -> int:
        """The place in the order of trust: 0 for the most trusted; labels themselves compare as texts."""
        return _ORDER_OF_TRUST.index(self)


_ORDER_OF_TRUST = tuple(TrustLabel)


def least_trusted(first: TrustLabel, *others: TrustLabel) -> TrustLabel:
    """Return the label of content made of labelled parts: it is trusted no more than any of them."""
    return max((first, *others), key=_ORDER_OF_TRUST.index)
