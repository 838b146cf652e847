"""Configuration section of trust: default labels for content that comes without one."""

from typing import Annotated

from pydantic import Field

from caliber.config.knobs import AsList, Name, Section, knob
from caliber.model.trajectory import TurnRole
from caliber.model.trust import TrustLabel

_ORDER = "system, user, tool, web: the most trusted first"


class TrustConfig(Section):
    """Labels of content that is written without one; a label that a call states takes precedence."""

    user_turns: TrustLabel = knob(f"Label of user turns ({_ORDER}).", "design")
    assistant_turns: TrustLabel = knob(
        "Label of assistant turns; if the scope holds a less trusted turn, the label of that one.", "design"
    )
    tool_turns: TrustLabel = knob("Label of tool turns.", "design")
    web_tools: Annotated[tuple[Name, ...], AsList, Field(max_length=1_000)] = knob(
        "Names of tools that fetch public content: their turns are labelled web.", "design"
    )
    artifacts: TrustLabel = knob("Label of artifacts without a source_turn; others have their turn's.", "design")
    notes: TrustLabel = knob("Label of notes and of records of declared memories that a caller adds.", "design")

    def of_turn(self, role: TurnRole, name: str | None) -> TrustLabel:
        """Return the label of a turn that states none, before what an assistant's scope holds is considered."""
        if role is TurnRole.SYSTEM:
            return TrustLabel.SYSTEM
        if role is TurnRole.USER:
            return self.user_turns
        if role is TurnRole.ASSISTANT:
            return self.assistant_turns
        return TrustLabel.WEB if name in self.web_tools else self.tool_turns
