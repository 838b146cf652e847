"""The trust label of a scope is the least of its turns', by whichever door a turn comes, and whoever relabels one.

Every row that is written passes a unit of work, or a bulk load: there it is kept. Appending asks for it with its own
statements. Source: docs/trust.md; docs/decisions/0185.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from caliber.model.errors import ConstraintViolation
from caliber.model.trust import TrustLabel
from caliber.schema.relation import Relation
from caliber.schema.relations import SCOPE, TURN
from caliber.storage.compile.codec import Row, codec_of
from caliber.storage.compile.plan import RelationPlans
from caliber.storage.compile.session import StatementSession

LOWER: Final = "scope.distrust"
"""The statement that lowers the label of a scope, if it is higher; its parameters are ``lowering``."""
_TURN_TRUST: Final = codec_of(TURN).index("trust")
_TURN_SCOPE: Final = codec_of(TURN).index("scope_id")
_SCOPE_ID: Final = codec_of(SCOPE).index("scope_id")
_SCOPE_TRUST: Final = codec_of(SCOPE).index("trust")


def lowering(turn: Row) -> tuple[str, bytes]:
    """Return the label of a turn, and the scope that is trusted no more."""
    return turn[_TURN_TRUST], turn[_TURN_SCOPE]


def relabelled(
    session: StatementSession, plans: Mapping[str, RelationPlans], relation: Relation, old: Row, new: Row
) -> tuple[str, bytes] | None:
    """Look at a turn or a scope that is about to change; return what it lowers, as ``lowering``.

    Raises: ConstraintViolation for a scope that would be trusted more than a turn in it.
    """
    if relation is TURN:
        if lowering(new) == lowering(old):
            return None
        _hold(session, plans, new[_TURN_SCOPE])
        return lowering(new)
    label = TrustLabel(new[_SCOPE_TRUST])
    if label.distrust < TrustLabel(old[_SCOPE_TRUST]).distrust:
        scope_id = new[_SCOPE_ID]
        _hold(session, plans, scope_id)
        for turn in session.run(plans[TURN.name].lists["list_by_scope"], (scope_id,)):
            if TrustLabel(turn[_TURN_TRUST]).distrust > label.distrust:
                reason = f"a turn in it is {turn[_TURN_TRUST]}; if that was checked, label the turn anew first"
                raise ConstraintViolation(constraint="scope_trust", reason=reason)
    return None


def _hold(session: StatementSession, plans: Mapping[str, RelationPlans], scope_id: bytes) -> None:
    """Keep others from changing a scope, and from adding turns to it: theirs refer to it.

    Who raises a scope's label and who lowers that of a turn would not see each other.
    """
    lock = plans[SCOPE.name].lock
    if lock is not None:
        session.run(lock, (scope_id,))
