"""Contract tests of completeness: mandatory and declared capabilities, and every irregular or regular statement."""

from __future__ import annotations

import pytest

from caliber.schema.relations import BY_NAME
from caliber.storage.compile.codec import codec_of
from caliber.storage.compile.statements import IRREGULAR, of_embedded
from contract.memories import CATALOG
from contract.target import CAPABILITIES, ContractTarget
from contract.world import World


@pytest.mark.parametrize("capability", [name for name, each in CAPABILITIES.items() if each.mandatory])
def test_mandatory_capability_is_there(capability: str, contract_target: ContractTarget) -> None:
    contract_target.needs(capability)


def test_declared_capabilities_are_those_of_the_store(contract_target: ContractTarget, world: World) -> None:
    """A store declares the capabilities it offers: one that it does not declare would be used without a proof."""
    assert world.store.capabilities <= {name for name, each in CAPABILITIES.items() if not each.mandatory}
    for capability in ("bulk", "full text"):
        assert (capability in world.store.capabilities) == contract_target.has(capability)
    assert (world.store.full_text is not None) == contract_target.has("full text")


def test_store_names_itself(world: World) -> None:
    # K-178; doctor and stats show it
    facts = world.store.facts()
    assert facts["adapter"] == world.store.adapter
    assert isinstance(facts["summary"], str)
    assert isinstance(facts["commits"], int)
    assert world.store.epoch
    assert world.store.integrity() == []


def test_every_statement_is_there_with_its_contract(world: World) -> None:
    # design section 3: a pair shares name, parameters and result columns
    wanted = dict(IRREGULAR)
    for memory in CATALOG.memories.values():
        wanted |= of_embedded(memory.relation.name)
    assert set(world.store.statements) == set(wanted)
    for name, contract in wanted.items():
        plan = world.store.statements[name]
        expected = codec_of(BY_NAME[contract.rows_of]).names if contract.rows_of else contract.results
        assert (plan.name, plan.binds, plan.results) == (name, contract.parameters, expected)


def test_every_relation_has_its_regular_statements(world: World) -> None:
    assert set(world.store.plans) == set(world.store.catalog.by_name) == set(CATALOG.by_name)
    for relation in CATALOG.relations:
        plans = world.store.plans[relation.name]
        assert plans.relation is relation
        assert (plans.update is not None) == relation.versioned
        assert (plans.get_many is not None) == relation.ordinal
        assert set(plans.lists) == set(plans.counts) == {path.name for path in relation.paths}
        assert set(plans.unique) == {unique.columns for unique in relation.uniques}
        expected = {key.column for key in relation.foreign_keys} if relation.mirrored else set()
        assert set(plans.references) == expected


def test_statements_are_counted_by_thread(world: World) -> None:
    # design section 5: "zero SQL on the calling path" is proven by this count
    before = world.store.statement_count()
    with world.store.read() as session:
        session.run(world.store.plans["note"].count, ())
    assert world.store.statement_count() > before
    after = world.store.statement_count()
    assert world.store.statement_count() == after
