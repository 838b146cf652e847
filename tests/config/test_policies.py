"""Policies as data: each action has what it needs and nothing that it would ignore."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import pytest

from caliber.config import CaliberConfig, PolicyAction, PolicyConfig, PolicyTarget, profiles
from caliber.model.declared import Trigger
from caliber.model.errors import ConfigError, IncompatibleOptions, InvalidConfigValue, MissingRequired, MultipleErrors

SAMPLE = profiles.reference("store.db", embedding_provider=None)


def with_policies(policies: Any) -> CaliberConfig:
    return SAMPLE.with_overrides(policies=policies)


def rule(on: str = "scope_close", *actions: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    return [{"name": "p", "rules": [{"on": on, "actions": list(actions), **more}]}]


def faults(policies: Any) -> list[ConfigError]:
    with pytest.raises(MultipleErrors) as caught:
        with_policies(policies)
    found: list[ConfigError] = caught.value.errors
    return found


def described(error: ConfigError) -> tuple[type[ConfigError], str]:
    where = error.context.get("field", error.context.get("option_a"))
    return type(error), str(where).removeprefix("policies[0].rules[0].actions[0].")


VALID: list[dict[str, Any]] = [
    {"action": "summarize", "target": "turn_buffer"},
    {"action": "summarize", "target": "scope"},
    {"action": "extract_artifacts", "target": "trajectory"},
    {"action": "consolidate_notes", "target": "trajectory"},
    {"action": "checkpoint", "target": "scope"},
    {"action": "prune", "target": "turn_buffer", "older_than_ms": "0s"},
    {"action": "prune", "target": "note", "below_confidence": 0.3},
    {"action": "prune", "target": "artifact", "below_confidence": 0.3, "older_than_ms": 86_400_000},
    {"action": "inject", "target": "note", "mode": {"kind": "relevant", "min_relevance": 0.7}},
    {"action": "inject", "target": "turn", "mode": {"kind": "top_k", "count": 3}},
    {"action": "notify", "channel": "trajectory_complete"},
    {"action": "notify", "channel": "_" + "a" * 54},
]


@pytest.mark.parametrize("action", VALID)
def test_the_actions_of_the_sources_are_accepted(action: dict[str, Any]) -> None:
    # C-176 to C-179, C-227
    config = with_policies(rule("task_end", action))
    assert config.policies[0].rules[0].actions[0].action == action["action"]
    assert CaliberConfig.from_json(config.canonical_json()) == config
    assert hash(config.policies) == hash(pickle.loads(pickle.dumps(config.policies)))


@pytest.mark.parametrize(("action", "expected"), [
    ({"target": "scope"}, [(MissingRequired, "action")]),
    ({"action": "explode", "target": "scope"}, [(InvalidConfigValue, "action")]),
    ({"action": "inject", "target": "scope"}, [(MissingRequired, "mode")]),
    ({"action": "inject", "target": "scope", "mode": {"kind": "most"}}, [(InvalidConfigValue, "mode.kind")]),
    ({"action": "inject", "target": "scope", "mode": {"kind": "top_k"}}, [(MissingRequired, "mode.count")]),
    ({"action": "summarize", "target": "scope", "mode": {"kind": "full"}}, [(IncompatibleOptions, "mode")]),
    ({"action": "prune", "target": "nots", "older_than_ms": "1d"}, [(InvalidConfigValue, "target")]),
    ({"action": "checkpoint", "target": "decision"}, [(IncompatibleOptions, "target")]),
    ({"action": "summarize"}, [(MissingRequired, "target")]),
    ({"action": "summarize", "target": "note"}, [(IncompatibleOptions, "target")]),
    ({"action": "consolidate_notes", "target": "scope"}, [(IncompatibleOptions, "target")]),
    ({"action": "checkpoint", "target": "turn_buffer"}, [(IncompatibleOptions, "target")]),
    ({"action": "prune", "target": "note"}, [(MissingRequired, "older_than_ms")]),
    ({"action": "prune"}, [(MissingRequired, "target"), (MissingRequired, "older_than_ms")]),
    ({"action": "prune", "target": "scope", "below_confidence": 0.5}, [(IncompatibleOptions, "below_confidence")]),
    ({"action": "prune", "target": "note", "below_confidence": 1.5}, [(InvalidConfigValue, "below_confidence")]),
    ({"action": "prune", "target": "note", "older_than_ms": "-1s"}, [(InvalidConfigValue, "older_than_ms")]),
    (
        {"action": "summarize", "target": "scope", "older_than_ms": 1, "below_confidence": 0.1, "channel": "c"},
        [(IncompatibleOptions, "older_than_ms"), (IncompatibleOptions, "below_confidence"),
         (IncompatibleOptions, "channel")],
    ),
    ({"action": "notify"}, [(MissingRequired, "channel")]),
    ({"action": "notify", "target": "scope", "channel": "c"}, [(IncompatibleOptions, "target")]),
    ({"action": "notify", "channel": "Upper"}, [(InvalidConfigValue, "channel")]),
    ({"action": "notify", "channel": "1st"}, [(InvalidConfigValue, "channel")]),
    ({"action": "notify", "channel": "a" * 56}, [(InvalidConfigValue, "channel")]),
    ({"action": "notify", "channel": 'a"; drop'}, [(InvalidConfigValue, "channel")]),
    ({"action": "notify", "channel": "a\n"}, [(InvalidConfigValue, "channel")]),
    ({"action": "notify", "channel": "a", "volume": 11}, [(InvalidConfigValue, "volume")]),
])  # fmt: skip
def test_an_action_lacks_nothing_and_carries_nothing_it_would_ignore(
    action: dict[str, Any], expected: list[tuple[type[ConfigError], str]]
) -> None:
    # C-122 C-227 C-242
    assert [described(error) for error in faults(rule("task_end", action))] == expected


@pytest.mark.parametrize("cron", ["0 0 * * *", "*/5 9-17 * * 1-5", "0 3 1 1 *", "30 4 * * SUN"])
def test_schedules_are_cron_expressions(cron: str) -> None:
    # C-147 C-178
    config = with_policies(rule("schedule", VALID[6], cron=cron))
    assert config.policies[0].rules[0].cron == cron


@pytest.mark.parametrize(
    "cron",
    ["", "* * * *", "* * * * * *", "60 * * * *", "0 0 31 2 *", "tomorrow", "0 0 * * 8", "@daily", "0 0 * * * " * 50, 5],
)
def test_what_can_never_come_due_is_refused(cron: Any) -> None:
    # C-147
    (error,) = faults(rule("schedule", VALID[6], cron=cron))
    assert (type(error), error.context["field"]) == (InvalidConfigValue, "policies[0].rules[0].cron")


def test_a_schedule_without_the_package_that_reads_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)
    (error,) = faults(rule("schedule", VALID[6], cron="0 0 * * *"))
    assert "pip install cronsim" in str(error)


@pytest.mark.parametrize("action", VALID)
def test_a_schedule_does_what_needs_no_trajectory(action: dict[str, Any]) -> None:
    # C-228: its range is the whole tenant
    if action["action"] in ("prune", "notify"):
        assert with_policies(rule("schedule", action, cron="0 3 * * *"))
        return
    (error,) = faults(rule("schedule", VALID[6], action, cron="0 3 * * *"))
    assert isinstance(error, IncompatibleOptions)
    assert error.context["option_a"] == "policies[0].rules[0].actions[1].action"
    assert "it does prune and notify" in str(error)


def test_only_a_schedule_has_a_cron_text() -> None:
    # C-147
    (missing,) = faults(rule("schedule", VALID[6]))
    assert missing.context == {"field": "policies[0].rules[0].cron"}
    (extra,) = faults(rule("task_end", VALID[0], cron="0 0 * * *"))
    assert isinstance(extra, IncompatibleOptions)
    assert extra.context["option_a"] == "policies[0].rules[0].cron"


def test_a_rule_does_something_and_names_are_unique() -> None:
    # C-149
    assert [error.context["field"] for error in faults(rule("turn"))] == ["policies[0].rules[0].actions"]
    twice = [*rule("turn", VALID[0]), *rule("task_end", VALID[0])]
    (error,) = faults(twice)
    assert "declared twice" in str(error)
    for name in ("", "two words", "1st", "a" * 64, "a\n", 7):
        assert faults([{"name": name, "rules": []}])
    assert with_policies([{"name": "empty", "rules": []}]).policies[0].rules == ()


def test_faults_in_several_policies_come_at_once() -> None:
    # C-122
    policies = [
        {"name": "a", "rules": [{"on": "sometimes", "actions": [VALID[0]]}]},
        {"name": "b", "rules": [{"on": "turn", "actions": [VALID[0], {"action": "notify"}, {"action": "prune"}]}]},
    ]
    assert [error.context["field"] for error in faults(policies)] == [
        "policies[0].rules[0].on",
        "policies[1].rules[0].actions[1].channel",
        "policies[1].rules[0].actions[2].target",
        "policies[1].rules[0].actions[2].older_than_ms",
    ]


def test_order_of_declaration_is_kept() -> None:
    # C-226
    config = with_policies(rule("task_end", *VALID))
    assert [action.action for action in config.policies[0].rules[0].actions] == [item["action"] for item in VALID]
    assert config.policies[0].rules[0].on is Trigger.TASK_END


def test_the_reference_profile_never_removes_anything() -> None:
    actions = [
        (rule.on, action.action, action.target)
        for policy in SAMPLE.policies
        for rule in policy.rules
        for action in rule.actions
    ]
    assert (Trigger.SCOPE_CLOSE, PolicyAction.SUMMARIZE, PolicyTarget.TURN_BUFFER) in actions
    assert (Trigger.SCOPE_CLOSE, PolicyAction.EXTRACT_ARTIFACTS, PolicyTarget.TURN_BUFFER) in actions
    assert (Trigger.SCOPE_CLOSE, PolicyAction.CHECKPOINT, PolicyTarget.SCOPE) in actions
    assert (Trigger.TASK_END, PolicyAction.CONSOLIDATE_NOTES, PolicyTarget.TRAJECTORY) in actions
    assert PolicyAction.PRUNE not in {action for _, action, _ in actions}
    assert all(isinstance(policy, PolicyConfig) for policy in SAMPLE.policies)


def test_a_policy_is_named_as_the_language_names_it() -> None:
    # C-166: what TOML takes, a program can say
    with pytest.raises(MultipleErrors, match=r"policies\[0\].name = 'Nightly': must be at most 63 lower-case letters"):
        profiles.reference("a.db", embedding_provider=None, policies=[{"name": "Nightly", "rules": []}])
