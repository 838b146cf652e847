"""The contract suite is itself tested: backends with one planted fault each, and a module beside ours that uses it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from contract.target import CAPABILITIES, ContractTarget
from contract.world import Contract, World
from support.backends.faulty_backends import FAULTS, Fault, Module
from support.configs import config

from caliber.model.errors import InvalidValue

LACKS = {
    "reopen": "it ends with its handle",
    "sharing": "it ends with its handle",
    "snapshots": "a reader keeps writers waiting in memory",
}


def _case(fault: Fault, tmp_path: Path, *, armed: bool) -> None:
    """Run the case that must see a fault on a backend that has it, or has not."""
    module = Module(fault, armed=armed and fault.on_world is None)
    target = ContractTarget(name="faulty", module=module, fresh=lambda _: config(":memory:"), lacks=LACKS)
    contract = Contract(target, lambda: tmp_path)
    try:
        if fault.on_world is not None:
            world = World(contract.store())
            module.stores[0].armed = armed
            fault.on_world(world)
        else:
            assert fault.on_contract is not None
            fault.on_contract(contract)
    finally:
        for store in module.stores:
            store.armed = False
        contract.close()


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_caught(name: str, tmp_path: Path) -> None:
    # design section 10: a checker is itself tested
    _case(FAULTS[name], tmp_path, armed=False)
    with pytest.raises(BaseException) as caught:  # noqa: PT011  (whatever fails a test)
        _case(FAULTS[name], tmp_path, armed=True)
    assert isinstance(caught.value, (Exception, pytest.fail.Exception)), "the case was skipped or interrupted"
    assert not isinstance(caught.value, pytest.skip.Exception)


OUTSIDE = """
    import pytest

    import caliber
    from caliber.backends import backend
    from contract.target import ContractTarget
    from contract.suite import *

    @pytest.fixture(scope="session")
    def contract_target():
        return ContractTarget(
            name="mine",
            module=backend("sqlite"),
            fresh=lambda folder: caliber.profiles.reference(folder / "store.db", embedding_provider=None),
            lacks={"snapshots": "readers see every commit at once", "order": "rows come as they like"},
        )
"""


def test_another_backend_needs_a_few_lines(tmp_path: Path) -> None:
    """In a folder of its own, without our configuration; what it lacks is skipped with its reason, or fails."""
    (tmp_path / "test_mine.py").write_text(textwrap.dedent(OUTSIDE))
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -ra --strict-markers\nfilterwarnings = error\n")
    selected = "mandatory or lock or reader_sees or store_outlives or closed_store or two_handles"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", selected]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    ran = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    lines = ran.stdout.splitlines()
    failed = [line for line in lines if line.startswith("FAILED")]
    assert len(failed) == 1, ran.stdout
    assert "test_mandatory_capability_is_there[order]" in failed[0]
    assert "rows come as they like; no backend can do without it" in ran.stdout
    skipped = [line for line in lines if line.startswith("SKIPPED")]
    assert len(skipped) == 1, ran.stdout
    assert "readers see every commit at once" in skipped[0]


RECORDED = """
    import json
    import sys
    from pathlib import Path

    import pytest

    sys.path.insert(0, {tests!r})
    from support.configs import config
    from support.backends.faulty_backends import Fault, Module, Session

    from contract.target import ContractTarget
    from contract.suite import *

    RAN = set()

    class Recording(Session):
        def do(self, call, plan, parameters):
            RAN.add(plan.name)
            return call(plan, parameters)

    @pytest.fixture(scope="session")
    def contract_target():
        module = Module(Fault(Recording), armed=True)
        yield ContractTarget(name="mine", module=module, fresh=lambda _: config(":memory:"), lacks={lacks!r})
        store = module.stores[0]
        there = set(store.statements)
        for name, plans in store.plans.items():
            if name != "change":  # written by statements of its own
                single = (plans.insert, plans.insert_or_ignore, plans.upsert, plans.get, plans.update, plans.delete)
                single += (plans.count, plans.page, plans.get_many, plans.lock)
                there |= {{plan.name for plan in single if plan is not None}}
                groups = (plans.lists, plans.counts, plans.references)
                there |= {{plan.name for group in groups for plan in group.values()}}
        lacking = sorted(there - RAN)
        unknown = sorted(RAN - there - {{plans.count.name for plans in store.plans.values()}})
        Path("statements.json").write_text(json.dumps([len(there), lacking, unknown]))
"""


@pytest.mark.soak
def test_a_run_of_the_suite_runs_every_statement(tmp_path: Path) -> None:
    tests = str(Path(__file__).resolve().parents[1])
    (tmp_path / "test_mine.py").write_text(textwrap.dedent(RECORDED).format(tests=tests, lacks=LACKS))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "test_mine.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    there, lacking, unknown = json.loads((tmp_path / "statements.json").read_text())
    assert there > 250
    assert lacking == []
    assert unknown == []


def test_declaration_is_checked() -> None:
    module = Module(Fault(), armed=False)

    def declare(lacks: dict[str, str]) -> ContractTarget:
        return ContractTarget(name="mine", module=module, fresh=lambda _: config(":memory:"), lacks=lacks)

    with pytest.raises(InvalidValue, match="there is no capability 'speed'; there are values"):
        declare({"speed": "it is slow"})
    with pytest.raises(InvalidValue, match="say why 'bulk' is lacking"):
        declare({"bulk": " "})
    target = declare({"bulk": "it has no COPY", "order": "it has none"})
    with pytest.raises(pytest.skip.Exception, match="it has no COPY"):
        target.needs("bulk")
    with pytest.raises(pytest.fail.Exception, match="it has none; no backend can do without it"):
        target.needs("order")
    target.needs("values")
    assert {name for name, each in CAPABILITIES.items() if not each.mandatory} >= set(LACKS)
