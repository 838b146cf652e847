"""Windows say once what was said once; the same words on two days are two events.

Source: issue "A window that one would put into a prompt", point 7.
"""

from __future__ import annotations

from datetime import timedelta

from support.context.companions import NOW, companion, recalled, tell


def test_a_summary_yields_to_the_turns_that_are_shown() -> None:
    with companion() as user:
        for days, code in ((5, "4711"), (2, "0815")):
            tell(user, (NOW - timedelta(days), f"The code of the garage door is {code}."))
        tell(user, (NOW - timedelta(1), "The hedge is cut."))
        window = recalled(user, "What is the code of the garage door?")
    assert [window.count(code) for code in ("4711", "0815")] == [1, 1]


def test_an_earlier_question_leaves_its_room_to_what_answers_it() -> None:
    question = "What is the code of the garage door?"
    with companion() as user:
        tell(user, (NOW - timedelta(9), "The code of the garage door is 4711."))
        recalled(user, question)
        recalled(user, "And what is the code of the garage door?")
        task = user.start_trajectory("question").trajectory_id
        user.remember([{"role": "user", "content": question}], task=task)
        window = user.assemble_context(task, max_tokens=60)
    assert "4711" in window.text
    assert window.text.count("garage door?") == 1


def test_a_question_enters_after_its_answer() -> None:
    with companion() as user:
        task = user.start_trajectory("talk").trajectory_id
        user.remember(
            [
                {"role": "user", "content": "Which bolt fits the left wheel of the cart?"},
                {"role": "assistant", "content": "The M12 from the tin box, with a spring washer under it."},
            ],
            task=task,
        )
        user.complete_trajectory(task, status="success", summary="")
        small = user.start_trajectory("again").trajectory_id
        user.remember([{"role": "user", "content": "Tell me the bolt for the left wheel of the cart"}], task=small)
        windows = [user.assemble_context(small, max_tokens=tokens).text for tokens in range(30, 90)]
    fits = next(at for at, text in enumerate(windows) if "M12" in text)
    assert all("M12" in text for text in windows[fits:])


def test_equal_words_of_two_days_are_two_events() -> None:
    with companion() as user:
        for days in (2, 3, 5):
            tell(user, (NOW - timedelta(days), "Took my pills."))
        window = recalled(user, "When did I take my pills?")
    assert window.count("Took my pills.") == 3


def test_equal_words_of_one_day_enter_once() -> None:
    with companion() as user:
        for hours in (20, 21):
            tell(user, (NOW - timedelta(hours=hours), "Took my pills."))
        window = recalled(user, "When did I take my pills?")
    assert window.count("Took my pills.") == 1


def test_an_artifact_and_the_turn_that_it_came_from_are_one() -> None:
    said = "We decided to move the archive to the cellar of the town hall."
    with companion() as user:
        task = user.start_trajectory("talk").trajectory_id
        user.remember(
            [{"role": "user", "content": said}, {"role": "assistant", "content": "The cellar it is."}], task=task
        )
        scope = user.current_scope(task).scope_id
        user.create_artifact(
            scope, artifact_type="design_decision", content=said, extraction_method="inferred", source_turn=0
        )
        user.create_artifact(
            scope, artifact_type="fact", content="The cellar key hangs behind the clock.", extraction_method="explicit"
        )
        user.remember([{"role": "user", "content": "Where did we decide to move the archive?"}], task=task)
        within = user.assemble_context(task)
        user.complete_trajectory(task, status="success", summary="")
        later = recalled(user, "Where did we decide to move the archive?")
    assert within.text.count("cellar of the town hall") == 1
    assert "behind the clock" in within.text
    assert later.count("cellar of the town hall") == 1


def test_a_note_and_the_turn_that_it_was_learnt_from_are_one() -> None:
    with companion() as user:
        tell(user, (NOW - timedelta(9), "I work as a nurse."))
        tell(user, (NOW - timedelta(8), "I work as a nurse, and the ward of the chapel is my best station."))
        window = recalled(user, "Which nurse runs the ward of the chapel?")
    assert window.count("works as a nurse") == 1
    assert "I work as a nurse." not in window
    assert "my best station" in window


def test_two_equal_messages_in_a_row_are_two() -> None:
    with companion() as user:
        task = user.start_trajectory("talk").trajectory_id
        user.remember([{"role": "user", "content": "yes"}, {"role": "user", "content": "yes"}], task=task)
        user.remember([{"role": "user", "content": "go on"}], task=task)
        window = user.assemble_context(task)
    assert window.text.count("user: yes") == 2
