"""``ingest chat``: whole or not at all, again and again, and every bad line by its number."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from support.cli_runs import caliber, caliber_json

import caliber as package
from caliber.model.trajectory import Turn

CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "You are helpful."},
    {"role": "user", "content": "How is the weather in Bern?", "name": "ada", "timestamp": "2024-05-01T10:00:00Z"},
    {"role": "assistant", "content": None, "tool_calls": [CALL], "model": "some-model"},
    {"role": "tool", "tool_call_id": "call_1", "content": "sunny, 21 degrees"},
    {"role": "assistant", "content": "It is sunny, at 21 degrees."},
]


def write(name: str, lines: list[Any]) -> str:
    Path(name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return name


def stored() -> list[Turn]:
    with package.open("caliber.toml", principal=package.Principal.admin()) as memory:
        return list(memory.storage.turns.all())


def test_messages_with_tool_calls_are_stored_in_order(here: Path) -> None:
    found = caliber_json("ingest", "chat", write("talk.jsonl", TALK))
    assert found["added"] == 5
    turns = stored()
    assert [turn.role.value for turn in turns] == ["system", "user", "assistant", "tool", "assistant"]
    assert turns[1].name == "ada"
    assert turns[1].occurred_at.isoformat() == "2024-05-01T10:00:00+00:00"
    assert (turns[2].text, turns[2].model_id) == ("", "some-model")
    assert [(call.id, call.name) for call in turns[2].tool_calls] == [("call_1", "weather")]
    assert turns[3].tool_call_id == "call_1"
    window = caliber_json("context", "latest")
    assert window["messages"][-3]["tool_calls"][0]["function"]["name"] == "weather"
    assert window["messages"][-2]["tool_call_id"] == "call_1"


def test_importing_again_adds_nothing_and_a_longer_log_adds_its_end(here: Path) -> None:
    write("talk.jsonl", TALK[:3])
    first = caliber_json("ingest", "chat", "talk.jsonl")
    assert caliber_json("ingest", "chat", "talk.jsonl")["added"] == 0
    assert "nothing was added" in caliber("ingest", "chat", "talk.jsonl").stdout
    write("talk.jsonl", TALK)
    grown = caliber_json("ingest", "chat", "talk.jsonl")
    assert (grown["added"], grown["counts"]["turns_known"]) == (2, 3)
    assert grown["conversations"][0]["trajectory_id"] == first["conversations"][0]["trajectory_id"]
    write("copy.jsonl", TALK[:4])
    assert caliber_json("ingest", "chat", "copy.jsonl")["added"] == 0
    assert [turn.turn_number for turn in stored()] == [0, 1, 2, 3, 4]


def test_conversations_that_begin_alike_stay_apart(here: Path) -> None:
    hello = {"role": "user", "content": "hello"}
    one = {"messages": [hello, {"role": "assistant", "content": "good day"}]}
    two = {"messages": [hello, {"role": "assistant", "content": "good night"}]}
    found = caliber_json("ingest", "chat", write("two.jsonl", [one, two, one]))
    assert (found["added"], found["counts"]["turns_known"]) == (4, 2)
    assert len({item["trajectory_id"] for item in found["conversations"]}) == 2
    assert caliber_json("ingest", "chat", "two.jsonl")["added"] == 0


def test_conversations_with_an_id_are_continued_by_it(here: Path) -> None:
    lines = [{"id": "t1", "title": "Weather", "messages": TALK[:2]}, {"id": "t2", "messages": TALK[:2]}]
    found = caliber_json("ingest", "chat", write("ids.jsonl", lines))
    assert found["added"] == 4
    assert found["conversations"][0]["goal"] == "Weather"
    lines[0]["messages"] = TALK
    assert caliber_json("ingest", "chat", write("ids.jsonl", lines))["added"] == 3


def test_content_in_parts_and_loose_forms(here: Path) -> None:
    parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "data:x"}}, "here"]
    lines = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": parts, "created_at": 1_700_000_000},
        {"role": "assistant", "content": "",
         "tool_calls": [{**CALL, "function": {"name": "f", "arguments": {"a": 1}}}]},
        {"role": "user", "content": "in ms", "timestamp": 1_700_000_000_000},
    ]  # fmt: skip
    found = caliber_json("ingest", "chat", write("parts.jsonl", lines))
    assert found["other_parts"] == 1
    turns = stored()
    assert turns[0].role == "system"
    assert turns[1].text == "look\n\n[image_url]\n\nhere"
    assert turns[2].tool_calls[0].arguments == '{"a": 1}'
    assert turns[1].occurred_at == turns[3].occurred_at


# --- --for: whose it is ------------------------------------------------------------------------


def initiators() -> dict[str, list[package.EntityRef]]:
    """Return the initiators of the tasks of each goal."""
    out: dict[str, list[package.EntityRef]] = {}
    with package.open("caliber.toml", principal=package.Principal.admin()) as memory:
        for task in memory.storage.trajectories.all():
            out.setdefault(task.goal or "", []).append(task.initiator)
    return out


def test_an_owner_is_named_as_a_program_names_it(here: Path) -> None:
    lines = [{"id": "t1", "title": "Weather", "messages": TALK}]
    found = caliber_json("ingest", "chat", write("maria.jsonl", lines), "--for", "maria")
    maria = package.EntityRef.user("maria")
    assert found["owner"] == f"user:{maria.id}"
    assert initiators() == {"Weather": [maria]}
    # The id is documented: any program in any language can make it.
    namespace = uuid.UUID("6c1d1f0e-3f0a-5c55-9a53-6a1c7e0b9d42")
    assert maria == package.EntityRef(package.EntityType.USER, uuid.uuid5(namespace, "maria"))
    assert str(namespace) in (package.EntityRef.user.__doc__ or "")
    for same in (found["owner"], "user:maria", " maria "):
        again = caliber_json("ingest", "chat", "maria.jsonl", "--for", same)
        assert (again["added"], again["counts"]["turns_known"]) == (0, 5), same
    assert f"owner      {found['owner']}" in caliber("ingest", "chat", "maria.jsonl", "--for", "maria").stdout


def test_the_same_log_of_two_owners_is_two_tasks_and_each_grows_by_itself(here: Path) -> None:
    write("talk.jsonl", TALK[:3])
    agent = uuid.uuid4()
    for owner in (("--for", "maria"), ("--for", "bo"), (), ("--for", f"agent:{agent}")):
        assert caliber_json("ingest", "chat", "talk.jsonl", *owner)["added"] == 3
    write("talk.jsonl", TALK)
    grown = caliber_json("ingest", "chat", "talk.jsonl", "--for", "bo")
    assert (grown["added"], grown["counts"]["turns_known"]) == (2, 3)
    (owners,) = initiators().values()
    assert [owner.entity_type.value for owner in owners] == ["user", "user", "system", "agent"]
    assert owners[:2] == [package.EntityRef.user("maria"), package.EntityRef.user("bo")]
    assert owners[3].id == agent
    with package.open("caliber.toml", principal=package.Principal.admin()) as memory:
        counts = [task.turn_count for task in memory.storage.trajectories.all()]
    assert counts == [3, 5, 3, 3]


@pytest.mark.parametrize(("owner", "fault"), [
    ("", "the name is empty"),
    ("user:", "the name is empty"),
    ("agent:maria", "'maria' is not an id"),
    ("note:0190f3c2-7c00-7000-8000-000000000001", "an owner is a user or an agent"),
    ("system:0190f3c2-7c00-7000-8000-000000000001", "an owner is a user or an agent"),
    ("0190f3c2-7c00-7000-8000-000000000001", "an id without its kind"),
])  # fmt: skip
def test_an_owner_that_is_none_is_refused_before_anything_is_read(here: Path, owner: str, fault: str) -> None:
    assert fault in caliber("ingest", "chat", "nowhere.jsonl", "--for", owner, code=2).stderr
    assert stored() == []


@pytest.mark.parametrize("named", [("--entity", "user:maria"), ("maria",)])
def test_an_owner_is_forgotten_by_name(here: Path, named: tuple[str, ...]) -> None:
    for name in ("maria", "bo"):
        caliber("ingest", "chat", write("talk.jsonl", TALK), "--for", name)
    found = caliber_json("forget", *named, "--yes")
    assert (found["proven"], found["erased"]["trajectory"]) == (True, 1)
    assert initiators() == {TALK[1]["content"]: [package.EntityRef.user("bo")]}
    assert len(stored()) == 5


def test_a_name_of_several_asks_which_is_meant(here: Path) -> None:
    caliber("ingest", "chat", write("talk.jsonl", TALK), "--for", "maria")
    with package.open("caliber.toml", principal=package.Principal.admin()) as memory:
        memory.acting_as(package.Principal.agent("maria")).start_trajectory("work")
    maria = f"user:{package.EntityRef.user('maria').id}"
    for name in ("maria", "Maria"):
        refused = caliber("forget", name, "--yes", code=2).stderr
        assert "several may be meant" in refused
        assert "--entity" in refused
        assert (maria in refused) == (name == "maria")
    caliber("forget", "nobody", "--yes")
    assert len(initiators()) > 1
    caliber("forget", "--entity", maria, "--yes")
    assert initiators().keys() == {"work"}


BAD: list[tuple[bytes, str]] = [
    (b"not json", "not JSON"),
    (b'{"role": "user"}', "message.content: is required"),
    (b'{"content": "x"}', "role is required"),
    (b'{"role": "wizard", "content": "x"}', "role"),
    (b'{"role": "user", "content": 5}', "a text or a list of parts"),
    (b'{"role": "user", "content": "x", "tool_calls": [{"id": "1", "function": {"name": "f"}}]}', "only assistant"),
    (b'{"role": "assistant", "content": "x", "tool_calls": [{"id": 1}]}', "tool_calls[0]"),
    (b'{"role": "user", "content": "x", "timestamp": "yesterday"}', "timestamp"),
    (b'{"role": "user", "content": "\\ud800"}', "surrogates"),
    (b'{"role": "user", "content": "\xff"}', "not UTF-8"),
    (b'["role"]', "expected an object"),
    (b'{"messages": []}', "at least one"),
    (b'{"messages": [{"role": "user", "content": "fine"}, {"role": "user"}]}', "messages[1]"),
    (b'{"messages": {"role": "user"}}', "must be a list"),
    (b'{"messages": ["x"]}', "messages[0]"),
    (b"[" * 100_000, "nested too deeply"),
    (b"9" * 10_000, "number too long"),
]


@pytest.mark.parametrize(("line", "fault"), BAD, ids=[fault for _, fault in BAD])
def test_a_bad_line_is_named_and_nothing_is_stored(here: Path, line: bytes, fault: str) -> None:
    good = json.dumps(TALK[1]).encode()
    Path("bad.jsonl").write_bytes(good + b"\n\n" + line + b"\n" + good + b"\n")
    result = caliber("ingest", "chat", "bad.jsonl", code=1)
    assert "line 3" in result.stderr
    assert fault in result.stderr
    assert "nothing was stored" in result.stderr
    assert "--skip-bad" in result.stderr
    document = caliber_json("ingest", "chat", "bad.jsonl", code=1)
    assert document["stored"] is False
    assert [item["line"] for item in document["bad_lines"]] == [3]
    assert stored() == []
    kept = caliber_json("ingest", "chat", "bad.jsonl", "--skip-bad")
    assert kept["added"] == 2
    assert [item["line"] for item in kept["bad_lines"]] == [3]
    assert len(stored()) == 2


def test_every_bad_line_is_listed_up_to_twenty(here: Path) -> None:
    Path("bad.jsonl").write_text("x\n" * 30)
    result = caliber("ingest", "chat", "bad.jsonl", code=1)
    assert "line 20:" in result.stderr
    assert "10 more bad lines" in result.stderr
    assert len(caliber_json("ingest", "chat", "bad.jsonl", code=1)["bad_lines"]) == 30


def test_files_that_hold_nothing_or_are_not_there(here: Path) -> None:
    Path("empty.jsonl").write_text("\n\n")
    assert "holds no messages" in caliber("ingest", "chat", "empty.jsonl", code=2).stderr
    assert "no such file" in caliber("ingest", "chat", "nowhere.jsonl", code=2).stderr
    assert "is a folder" in caliber("ingest", "chat", ".", code=2).stderr
    Path("bad.jsonl").write_text("x\n")
    assert "holds no messages" in caliber("ingest", "chat", "bad.jsonl", "--skip-bad", code=2).stderr


def test_windows_line_ends_byte_order_mark_and_no_last_newline(here: Path) -> None:
    raw = b"\xef\xbb\xbf" + b"\r\n".join(json.dumps(line).encode() for line in TALK)
    Path("dos.jsonl").write_bytes(raw)
    assert caliber_json("ingest", "chat", "dos.jsonl")["added"] == 5
    assert caliber_json("ingest", "chat", write("unix.jsonl", TALK))["added"] == 0


def test_a_long_conversation_is_stored_in_batches_and_found_again(here: Path) -> None:
    lines = [{"role": "user" if at % 2 else "assistant", "content": f"message {at}"} for at in range(1_201)]
    write("long.jsonl", lines)
    assert caliber_json("ingest", "chat", "long.jsonl")["added"] == 1_201
    assert caliber_json("ingest", "chat", "long.jsonl")["added"] == 0


def test_messages_are_trusted_by_role_as_far_as_the_file_is(here: Path) -> None:
    # design section 10: what a file says of roles is only what the file says
    with Path("caliber.toml").open("a") as file:
        file.write('[trust]\nweb_tools = ["weather"]\n')
    caliber("ingest", "chat", write("talk.jsonl", TALK))
    assert [turn.trust.value for turn in stored()] == ["user", "user", "tool", "web", "web"]
    # What is known keeps its label; what is new of a longer log has the one that goes for it now.
    more = [*TALK, {"role": "user", "content": "thanks"}]
    caliber("ingest", "chat", write("talk.jsonl", more), "--trust", "web")
    assert [turn.trust.value for turn in stored()] == ["user", "user", "tool", "web", "web", "web"]
    caliber("ingest", "chat", write("mine.jsonl", [{"role": "system", "content": "mine"}]), "--trust", "system")
    assert stored()[-1].trust.value == "system"


def test_one_conversation_is_one_conversation(here: Path) -> None:
    (here / "a.jsonl").write_text('{"role": "user", "content": "hi"}\nnot json\n')
    said = caliber("ingest", "chat", "a.jsonl", "--skip-bad").stdout
    assert "1 conversation:" in said
    assert "1 bad line\n" in said
