"""``caliber agents``, ``locks``, ``messages``, ``todos`` and ``blocks``: looking and mending, on every database."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cli_runs import caliber, caliber_json
from support.databases import Backend
from support.drawn import needs
from support.tenancy.tenancies import tenancy_config
from support.threads import begin
from support.waits import until

import caliber as package
from caliber.config.manual.render import render_toml
from caliber.model import Principal
from caliber.model.errors import LockAcquisitionFailed, LockExpired

pytestmark = pytest.mark.databases("all")
UNKNOWN = "0190f3c2-7c00-7000-8000-000000000000"
KNOBS = {"embedding_provider": None, "policies": [], "jobs__poll_ms": 0}


@pytest.fixture
def store(backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[package.Caliber]:
    """A store whose configuration commands read, open in this process too."""
    monkeypatch.chdir(tmp_path)
    config = backend.config(agents__messages__attempts_max=1, memories=["blocks"], **KNOBS)
    (tmp_path / "caliber.toml").write_text(render_toml(config), encoding="utf-8")
    memory = backend.open(config, principal=Principal.admin())
    memory.agents.register("planner", type="lead", capabilities=["plan"], can_delegate_to=["worker"])
    memory.agents.register("scout", type="worker", reports_to="planner", description="looks around")
    yield memory
    memory.close()


def as_agent(memory: package.Caliber, name: str) -> package.Caliber:
    return memory.acting_as(Principal.agent(name))


@needs("reopen")
def test_agents_are_listed_and_shown(store: package.Caliber) -> None:
    listed = caliber_json("agents", "list")["agents"]
    assert [(each["name"], each["status"], each["reports_to"]) for each in listed] == [
        ("planner", "idle", None),
        ("scout", "idle", "planner"),
    ]
    assert [each["name"] for each in caliber_json("agents", "list", "--type", "worker")["agents"]] == ["scout"]
    assert caliber_json("agents", "list", "--status", "failed")["agents"] == []
    assert "there are no such agents" in caliber("agents", "list", "--status", "failed").stdout
    planner = as_agent(store, "planner")
    goal = planner.start_trajectory("plan a trip")
    planner.agents.delegations.delegate("find a train", parent=goal.trajectory_id, to="scout")
    planner.agents.locks.acquire("itinerary")
    task = store.workspace.todos.add("book seats")
    planner.workspace.todos.claim(task.todo_id)
    shown = caliber_json("agents", "show", "planner")["agent"]
    assert [each["resource"] for each in shown["locks"]] == ["itinerary"]
    assert [(each["from"], each["to"], each["status"]) for each in shown["delegations"]] == [
        ("planner", "scout", "pending")
    ]
    assert [each["title"] for each in shown["todos"]] == ["book seats"]
    assert [each["goal"] for each in shown["works_on"]] == ["plan a trip"]
    text = caliber("agents", "show", "planner").stdout
    parts = ("delegates to worker", "plan a trip", "holds itinerary, exclusive", "planner to scout")
    for part in (*parts, "1 lock, 1 open delegation"):
        assert part in text
    missing = caliber("agents", "show", "nobody", code=2).stderr
    assert "not registered" in missing
    assert "caliber agents list" in missing


@needs("reopen")
def test_agents_are_mended(store: package.Caliber) -> None:
    for change in (("status", "scout", "active"), ("fail", "scout"), ("retire", "scout"), ("fail", "--silent")):
        refused = caliber("agents", *change, code=2).stderr
        assert "no terminal can confirm it" in refused
        assert "--yes" in refused
        assert "error" in caliber_json("agents", *change, code=2)
    assert store.agents.get("scout").status == "idle"
    assert caliber_json("agents", "status", "scout", "active", "--yes")["agents"][0]["status"] == "active"
    assert caliber_json("agents", "fail", "scout", "--yes")["agents"][0]["status"] == "failed"
    assert "cannot go from" in caliber("agents", "status", "scout", "active", "--yes", code=2).stderr
    assert caliber_json("agents", "fail", "--silent", "--yes")["agents"] == []
    assert "NAME or --silent" in caliber("agents", "fail", "--yes", code=2).stderr
    assert "archived" in caliber("agents", "retire", "scout", "--yes").stdout
    assert store.agents.get("scout").lifecycle == "archived"
    caliber("agents", "lifecycle", "scout", "active", "--yes")
    assert store.agents.get("scout").lifecycle == "active"


@needs("reopen")
def test_locks_are_listed_with_who_waits_and_broken(store: package.Caliber) -> None:
    lock = as_agent(store, "planner").agents.locks.acquire("itinerary", lease_ms=600_000)
    assert "there are no locks" in caliber("locks", "list", "--resource", "another").stdout
    failed: list[Exception] = []

    def wait() -> None:
        try:
            as_agent(store, "scout").agents.locks.acquire("itinerary", mode="shared", wait_ms=60_000)
        except LockAcquisitionFailed as error:
            failed.append(error)

    waiter = begin(wait)
    until(lambda: bool(store.agents.locks.waiting()), "a request waits")
    (found,) = caliber_json("locks", "list")["locks"]
    assert (found["resource"], found["held"][0]["holder"]) == ("itinerary", "agent:planner")
    assert 0 < found["held"][0]["lease_left_s"] <= 600
    assert [(each["holder"], each["mode"]) for each in found["waiting"]] == [("agent:scout", "shared")]
    text = caliber("locks", "list", "--resource", "itinerary").stdout
    assert "1 request waiting" in text
    assert "agent:scout, shared" in text
    assert "confirm" in caliber("locks", "break", "itinerary", code=2).stderr
    assert "may not break" in caliber("locks", "break", "itinerary", "--yes", "--as", "agent:scout", code=2).stderr
    (broken,) = caliber_json("locks", "break", "itinerary", "--yes")["broken"]
    assert broken["held"][0]["token"] == lock.token
    waiter.result(60)
    assert failed == []
    assert [each.holder for each in store.agents.locks.held("itinerary")] == ["agent:scout"]
    with pytest.raises(LockExpired):
        store.workspace.values.set("x", 1, guard=package.LockToken("itinerary", lock.token))
    assert "no lock on another" in caliber("locks", "break", "another", "--yes").stdout


@needs("reopen")
def test_tasks_are_listed_and_mended(store: package.Caliber) -> None:
    first = store.workspace.todos.add("choose a date")
    task = store.workspace.todos.add("book seats", description="two", priority="high", depends_on=[first.todo_id])
    listed = caliber_json("todos", "list")["todos"]
    assert [(each["title"], each["agent"]) for each in listed] == [("book seats", None), ("choose a date", None)]
    assert [each["title"] for each in caliber_json("todos", "list", "--ready")["todos"]] == ["choose a date"]
    shown = caliber_json("todos", "show", str(task.todo_id))["todo"]
    assert [each["title"] for each in shown["depends_on"]] == ["choose a date"]
    text = caliber("todos", "show", str(task.todo_id)).stdout
    assert text.index("two") < text.index("waits for") < text.index("choose a date")
    key = str(first.todo_id)
    as_agent(store, "scout").workspace.todos.claim(key)
    for change in (("assign", key, "planner"), ("release", key), ("cancel", key)):
        assert "--yes" in caliber("todos", *change, code=2).stderr
    assert store.workspace.todos.get(key).status == "in_progress"
    given = caliber_json("todos", "assign", key, "planner", "--yes")["todo"]
    assert (given["agent"], given["status"]) == ("planner", "pending")
    assert caliber_json("todos", "release", key, "--yes")["todo"]["agent"] is None
    assert "may not" in caliber("todos", "cancel", key, "--yes", "--as", "agent:scout", code=2).stderr
    assert "cancelled" in caliber("todos", "cancel", key, "--yes").stdout
    assert "cannot go from" in caliber("todos", "cancel", key, "--yes", code=2).stderr
    assert [each["todo_id"] for each in caliber_json("todos", "list", "--status", "cancelled")["todos"]] == [key]
    assert caliber_json("todos", "reopen", key)["todo"]["status"] == "pending"
    assert "caliber todos list" in caliber("todos", "show", UNKNOWN, code=2).stderr


@needs("reopen")
def test_messages_name_their_agents_and_are_delivered_again(store: package.Caliber) -> None:
    sent = as_agent(store, "planner").agents.messages.send("two seats", to="scout")
    scout = as_agent(store, "scout").agents.messages
    (message,) = scout.claim()
    key = str(sent.message_id)
    (listed,) = caliber_json("messages", "list")["messages"]
    assert (listed["from"], listed["to"], listed["state"]) == ("planner", "scout", "delivered")
    assert "from planner to scout" in caliber("messages", "list").stdout
    assert "--yes" in caliber("messages", "redeliver", key, code=2).stderr
    assert caliber_json("messages", "redeliver", key, "--yes")["message"]["state"] == "pending"
    (again,) = scout.claim()
    scout.ack(again)
    assert "cannot go from" in caliber("messages", "redeliver", key, "--yes", code=2).stderr
    assert message.message_id == again.message_id
    assert "two seats" in caliber("messages", "show", key).stdout
    late = as_agent(store, "planner").agents.messages.send("last call", to="scout", expires_in_ms=1)
    until(lambda: store.agents.messages.list(state="expired"))
    (listed,) = caliber_json("messages", "list", "--state", "expired")["messages"]
    assert (listed["message_id"], listed["state"]) == (str(late.message_id), "expired")
    assert "caliber messages list" in caliber("messages", "show", UNKNOWN, code=2).stderr


@needs("reopen")
def test_stats_and_top_show_agents(store: package.Caliber) -> None:
    planner = as_agent(store, "planner")
    planner.agents.set_status("active")
    planner.agents.locks.acquire("itinerary")
    planner.agents.messages.send("two seats", to="scout")
    goal = planner.start_trajectory("plan a trip")
    planner.agents.delegations.delegate("find a train", parent=goal.trajectory_id, to_type="worker")
    figures = {
        "agents": {"active": 1, "idle": 1},
        "locks_held": 1,
        "locks_waiting": 0,
        "messages_pending": 1,
        "messages_delivered": 0,
        "messages_dead": 0,
        "delegations_open": 1,
    }
    assert caliber_json("stats")["team"] == caliber_json("top")["team"] == figures
    for text in (caliber("stats").stdout, caliber("top", "--once").stdout):
        assert "1 active, 1 idle   delegations 1 open   locks 1 held, 0 waiting" in text
        assert "1 pending, 0 delivered, 0 dead" in text
    assert caliber_json("top", "--as", "app")["team"] is None


@needs("reopen")
def test_users_see_no_team(store: package.Caliber) -> None:
    for command in (("agents", "list"), ("agents", "show", "planner"), ("messages", "list")):
        assert "may not" in caliber(*command, "--as", "user:maria", code=2).stderr
    store.agents.locks.acquire("itinerary", holder="app")
    store.workspace.todos.add("secret", visible_to=["agent:planner"])
    assert caliber_json("locks", "list", "--as", "user:maria")["locks"] == []
    assert caliber_json("todos", "list", "--as", "user:maria")["todos"] == []


@pytest.mark.databases("one")
def test_a_tenants_agents_are_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tenancy_config(tmp_path, embedding_provider=None)
    (tmp_path / "caliber.toml").write_text(render_toml(config), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for name in ("alice", "bob"):
        caliber("db", "tenant", "create", name)
    with package.Tenants(config) as tenants, tenants.open("alice") as memory:
        memory.agents.register("planner")
    assert len(caliber_json("agents", "list", "-t", "alice")["agents"]) == 1
    assert caliber_json("agents", "list", "-t", "bob")["agents"] == []
    assert caliber_json("locks", "list", "-t", "bob")["locks"] == caliber_json("todos", "list", "-t", "bob")["todos"]


@needs("reopen")
def test_blocks_are_listed_edited_and_taken_back(
    store: package.Caliber, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.blocks.create("rules", "Be brief.", max_chars=100)
    as_agent(store, "planner").blocks.create("persona", "I plan.")
    store.as_user("maria").blocks.create("human", "Likes tea.")
    listed = caliber_json("blocks", "list")["blocks"]
    assert {(each["label"], each["owner"]) for each in listed} == {
        ("rules", None), ("persona", "agent:planner"), ("human", "user:maria"),
    }  # fmt: skip
    assert "9/100" in caliber("blocks", "list", "--as", "agent:scout").stdout
    assert caliber("blocks", "show", "persona", "--as", "agent:planner").stdout == "I plan.\n"
    assert "there is no block persona" in caliber("blocks", "show", "persona", code=2).stderr
    editor = tmp_path / "editor.py"
    editor.write_text(
        "import pathlib, sys\n"
        "file = pathlib.Path(sys.argv[2])\n"
        "text = file.read_text()\n"
        "file.write_text(text * 20 if sys.argv[1] == 'long' else text.replace('brief', 'kind'))\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("EDITOR", f"{sys.executable} {editor} short")
    assert "rules has 8 of 100 characters" in caliber("blocks", "edit", "rules").stdout
    assert caliber("blocks", "show", "rules").stdout == "Be kind.\n"
    assert caliber("blocks", "edit", "rules").stdout == "unchanged\n"
    told = caliber("blocks", "history", "rules").stdout
    assert told.index("version 2") < told.index("-Be brief.") < told.index("+Be kind.")
    assert caliber_json("blocks", "undo", "rules")["block"]["text"] == "Be brief."
    monkeypatch.setenv("EDITOR", f"{sys.executable} {editor} long")
    assert "at most 100 characters" in caliber("blocks", "edit", "rules", code=2).stderr
