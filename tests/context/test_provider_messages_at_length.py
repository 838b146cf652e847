"""Ten thousand random histories against the rules of providers, and hundreds of windows of a store."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from context.test_provider_messages import check_histories
from support.context.histories import History
from support.context.provider_rules import anthropic_faults, openai_faults

import caliber
from caliber.model.errors import BudgetTooSmall

pytestmark = pytest.mark.prove


def test_ten_thousand_random_histories_pass_the_rules_of_providers() -> None:
    check_histories(range(10_000))


def test_windows_of_a_store_pass_the_rules_of_providers(backend: Any) -> None:
    memory = backend.open()
    wrong = []
    for number in range(150):
        messages = History(number).messages
        handle = memory.acting_as(caliber.Principal.user(f"user {number}"))
        task = handle.remember(messages).trajectory_id
        for budget in (4_000, 900):
            with contextlib.suppress(BudgetTooSmall):  # a call enters whole, or not at all
                window = handle.assemble_context(task, max_tokens=budget)
            faults = openai_faults(window.to_messages()) + anthropic_faults(window.to_messages(form="anthropic"))
            assert window.used_tokens <= budget
            again = handle.replay(window.window_id)
            assert (again.text, again.to_messages("anthropic")) == (window.text, window.to_messages("anthropic"))
            wrong += [(number, budget, faults)] if faults else []
    assert wrong == []
