"""Profiles for coding, chat and operations agents, and the profile ``sources``, as changes to ``reference``.

Every value is ours, chosen for the reason beside it and not measured; ``caliber init`` writes the reason into the file.
Changes marked ``vectors`` apply where texts are embedded. Source: K-002, O-14.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from caliber.model.lazy_dataclass import dataclass

SECOND: Final = 1_000
MINUTE: Final = 60 * SECOND
DAY: Final = 86_400 * SECOND
SHARES: Final = "assembly.section_shares"


@dataclass(frozen=True, slots=True)
class Change:
    """A knob's value in a profile, and why it is not the reference's."""

    value: Any
    why: str
    vectors: bool = False


@dataclass(frozen=True, slots=True)
class AgentProfile:
    """A kind of agent: its name on the command line, its purpose, its changes."""

    name: str
    about: str
    changes: Mapping[str, Change]


def _policy(name: str, on: str, *actions: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": name, "rules": [{"on": on, "actions": [dict(action) for action in actions]}]}


_SUMMARIZE: Final = {"action": "summarize", "target": "turn_buffer"}
_EXTRACT: Final = {"action": "extract_artifacts", "target": "turn_buffer"}
_CHECKPOINT_SCOPE: Final = {"action": "checkpoint", "target": "scope"}
_CHECKPOINT_TASK: Final = {"action": "checkpoint", "target": "trajectory"}
_CONSOLIDATE: Final = {"action": "consolidate_notes", "target": "trajectory"}

CODING_AGENT: Final = AgentProfile(
    "coding-agent",
    "An agent that changes code: long tasks, tool calls, files, patches, errors.",
    {
        "token_budget": Change(32_000, "Files, diffs and test output are long, and models that code read them."),
        "pcp.dosage.max_context_tokens": Change(32_000, "All of token_budget."),
        "checkpoint_retention": Change(20, "Changes are many: enough to go back to before the one that broke it."),
        "tokens.estimator": Change("calibrated", "Code has fewer bytes a token than prose; the fitted tables know."),
        SHARES: Change(
            {
                "history": [0.06, 0.06],
                "user": [0.06, 0.7],
                "earlier": [0.0, 0.75],
                "artifacts": [0.15, 0.45],
                "notes": [0.05, 0.45],
                "recall": [0.1, 0.6],
            },
            "Outputs and failures take as much room as the talk about them.",
        ),
        "assembly.evict_block_turns": Change(
            64, "Turns are many and short (tool calls): larger blocks keep the provider's cache longer."
        ),
        "summaries.max_tokens": Change(300, "A block has four times the turns of the reference."),
        "assembly.overflow_policy": Change("exclude", "Half a patch misleads: a record goes in whole or not at all."),
        "search.boosts.exact": Change(1.0, "An identifier or a quoted message asks for exactly that."),
        "search.weights.vector": Change(0.11, "Names decide; meaning helps with prose about code.", vectors=True),
        "search.weights.keyword": Change(0.8, "The identifier in the question is the one in the record.", vectors=True),
        "search.keyword.similar_words": Change("none", "Identifiers have no English neighbours.", vectors=True),
        "embedding.embed.turn": Change("off", "Most turns are tool output, which is found by its words.", vectors=True),
        "embedding.embed.artifact": Change("behind", "A tool loop does not wait for vectors.", vectors=True),
        "embedding.long_text": Change("chunks", "A file has many subjects: each part has its vector.", vectors=True),
    },
)

CHAT_COMPANION: Final = AgentProfile(
    "chat-companion",
    "An agent that talks with one person over months: short turns, what it knows of them counts.",
    {
        "token_budget": Change(4_000, "Chat turns are short, and every answer pays for its window."),
        "pcp.dosage.max_context_tokens": Change(4_000, "All of token_budget."),
        SHARES: Change(
            {
                "history": [0.06, 0.06],
                "user": [0.06, 0.9],
                "earlier": [0.0, 0.75],
                "told": [0.1, 0.5],
                "about_user": [0.1, 0.1],
                "artifacts": [0.0, 0.1],
                "notes": [0.02, 0.35],
                "recall": [0.1, 0.75],
            },
            "More room for what is known and for what was said before, less for outputs.",
        ),
        "assembly.notes_without_query": Change(20, "A greeting asks nothing: what is known comes along all the same."),
        "search.boosts.recency": Change(0.15, "A question more often means last week's talk than last year's."),
        "search.boosts.recency_half_life_ms": Change(14 * DAY, "Two weeks, as talk is picked up again."),
        "embedding.embed.note": Change(
            "behind", "The answer does not wait until something is remembered.", vectors=True
        ),
        "embedding.embed.artifact": Change("behind", "As of notes.", vectors=True),
        "embedding.embed.scope": Change("behind", "As of notes.", vectors=True),
        "embedding.embed.default": Change("behind", "As of notes.", vectors=True),
        "context_window_persistence.ttl_ms": Change(7 * DAY, "Windows hold private talk: as long as debugging needs."),
        "retention.windows_ms": Change(7 * DAY, "As long as context_window_persistence.ttl_ms."),
        "retention.events_ms": Change(30 * DAY, "Traces name what was talked about: a month."),
        "policies": Change(
            [
                _policy("talk_pauses", "scope_close", _SUMMARIZE, _EXTRACT),
                _policy("talk_ends", "task_end", _CONSOLIDATE),
            ],
            "Talk is remembered, never rolled back: no checkpoints, and nobody waits to be notified.",
        ),
    },
)

OPS_AGENT: Final = AgentProfile(
    "ops-agent",
    "An agent that runs systems: incidents, logs, several processes at once, everything accounted for.",
    {
        "token_budget": Change(16_000, "Logs and runbooks are long; an incident is short."),
        "pcp.dosage.max_context_tokens": Change(16_000, "All of token_budget."),
        "lock_timeout": Change(2 * MINUTE, "A restart or a rollout takes longer than an edit."),
        "storage.durability": Change("group", "Collectors and responders write at once: they share commits."),
        "resident.read_consistency": Change("latest", "Another process's finding counts in the very next window."),
        "write_behind.window_durability": Change(
            "commit", "The window that an action rests on is on disk before the action."
        ),
        "retention.windows_ms": Change(365 * DAY, "Post-mortems ask what it saw, a year later too."),
        "context_window_persistence.ttl_ms": Change(365 * DAY, "As long as retention.windows_ms."),
        "retention.events_ms": Change("forever", "The event log is the audit."),
        SHARES: Change(
            {
                "history": [0.06, 0.06],
                "user": [0.06, 0.65],
                "earlier": [0.0, 0.75],
                "artifacts": [0.05, 0.3],
                "notes": [0.15, 0.4],
                "recall": [0.1, 0.6],
            },
            "Runbooks are notes, and alerts crowd: more room for the first, less for the second.",
        ),
        "assembly.truncate_min_tokens": Change(64, "A shorter rest of a log holds no line worth reading."),
        "search.boosts.exact": Change(1.0, "Host names and error codes are asked for as they are."),
        "search.boosts.recency": Change(0.3, "The incident is now."),
        "search.boosts.recency_half_life_ms": Change(DAY, "Yesterday's alert counts half."),
        "search.boosts.date_slack_ms": Change(DAY, "Traces of a day are written on that day."),
        "search.diversity": Change(0.3, "A hundred equal log lines say one thing."),
        "embedding.embed.turn": Change("off", "Log lines are found by their words.", vectors=True),
        "policy_engine.on_error": Change("abort", "A step that failed is looked at, not passed over."),
        "trajectory.children_on_complete": Change("cascade_fail", "A closed incident leaves no side task running."),
        "policies": Change(
            [
                _policy("shift_ends", "scope_close", _CHECKPOINT_SCOPE, _SUMMARIZE, _EXTRACT),
                _policy(
                    "incident_closes",
                    "task_end",
                    _CHECKPOINT_TASK,
                    _CONSOLIDATE,
                    {"action": "notify", "channel": "incident_closed"},
                ),
            ],
            "State is kept before anything reads it, at a task's end too, and people are told.",
        ),
    },
)

SOURCES: Final = AgentProfile(
    "sources",
    "Windows as the source documents fill them: strictly by priority, nothing recalled. A long conversation leaves "
    "no room for the record that answers.",
    {
        "assembly.order": Change("priority", "The sources rank sections strictly, the conversation first."),
        SHARES: Change(
            {"user": [0.0, 0.6], "artifacts": [0.0, 0.3], "notes": [0.0, 0.3], "history": [0.0, 0.15]},
            "Caps alone: the sources know no floors.",
        ),
        "recall.limit": Change(0, "The sources recall no turns."),
        "recall.length_weight": Change(0.0, "Within a section relevance decides, whatever the length."),
        "pcp.dosage.max_scopes_in_window": Change(5, "As the sources say."),
        "pcp.dosage.max_artifacts_in_window": Change(20, "As the sources say."),
        "pcp.dosage.max_notes_in_window": Change(10, "As the sources say."),
    },
)

AGENT_PROFILES: Final = {profile.name: profile for profile in (CODING_AGENT, CHAT_COMPANION, OPS_AGENT, SOURCES)}
