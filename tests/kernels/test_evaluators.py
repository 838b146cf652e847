"""NumPy and Numba give the same bits, and both what a plain definition gives (issue 3, item 7; design, section 5)."""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from support.context.limits import set_limits
from support.context.world import World, searching
from support.kinds import KINDS

from caliber.access.owners import TaskOwners
from caliber.access.visibility import Readers
from caliber.context.assembler import assemble
from caliber.context.record.record import unpack_record
from caliber.kernels import Csr, Edges, Evaluator, Walk, csr, walk
from caliber.kernels.evaluator import NUMPY, Allowed, Within
from caliber.kernels.jit.loops import FEW
from caliber.model import AgentRole, Principal, PrincipalKind
from caliber.model.errors import BudgetTooSmall, DTypeError, InvalidValue, NonFiniteError, ShapeError
from caliber.resident.memory import ResidentMemory
from caliber.resident.predicates import held_texts, mask
from caliber.resident.tables import Layout
from caliber.schema.relations import MIRRORED
from caliber.search.filtering.filters import Where, conditions_of
from caliber.search.request import Request
from caliber.search.searcher import Searcher

pytestmark = pytest.mark.prove

I64 = np.iinfo(np.int64)
lengths = st.one_of(st.integers(0, 40), st.sampled_from([63, 64, 65, 1_025]))
instants = st.one_of(
    st.integers(-3, 3), st.sampled_from([I64.min, I64.max, I64.max - 1]), st.integers(I64.min, I64.max)
)
f32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
unit = st.floats(0, 1, width=32)
# The evaluator is the same for all examples.
many = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def column(length: int, values: st.SearchStrategy[Any], dtype: Any) -> st.SearchStrategy[Any]:
    """Rows drawn one by one; long columns repeat their first ones."""
    drawn = arrays.arrays(dtype, min(length, 23), elements=values, fill=st.nothing())
    return drawn if length <= 23 else drawn.map(lambda rows: np.resize(rows, length))


def frozen(array: Any) -> Any:
    """As resident columns are: not to be written to."""
    array.flags.writeable = False
    return array


@st.composite
def rules(draw: st.DrawFn) -> tuple[Any, Any, Any, Any]:
    length = draw(lengths)
    live = draw(column(length, st.booleans(), np.bool_))
    ended = draw(column(length, st.integers(0, 2), np.uint8))
    bounds = [sorted((draw(instants), draw(instants))) for _ in range(3)]
    if draw(st.booleans()):
        bounds[0][1] = bounds[0][0]
    rule = tuple(Within(frozen(draw(column(length, instants, np.int64))), low, high) for low, high in bounds)
    allowed = None
    if draw(st.booleans()):
        verdicts = draw(column(draw(st.integers(1, 4)), st.booleans(), np.bool_))
        allowed = Allowed(draw(column(length, st.integers(0, len(verdicts) - 1), np.int32)), verdicts)
    return live, frozen(ended), rule, allowed


@given(rules())
def test_what_is_in_force(numba: Evaluator, case: Any) -> None:  # C-452, C-453
    live, ended, rule, allowed = case
    expected = [
        bool(live[row])
        and ended[row] == 0
        and all(part.least <= part.column[row] <= part.most for part in rule)
        and (allowed is None or bool(allowed.verdicts[allowed.codes[row]]))
        for row in range(len(live))
    ]
    for evaluator in (NUMPY, numba):
        assert evaluator.valid_rows(live, ended, rule, allowed).tolist() == expected, evaluator


COLUMNS = {np.int64: instants, np.float64: st.floats(allow_nan=False), np.int32: st.integers(-1, 40),
           np.int8: st.integers(-1, 40), np.uint8: st.integers(0, 2)}  # fmt: skip


def test_every_type_of_a_resident_column_can_be_filtered() -> None:
    layouts = [Layout(relation) for relation in MIRRORED]
    types = {layout.dtype_of(residence, kind) for layout in layouts for _, _, residence, kind, _ in layout.columns}
    assert types <= set(COLUMNS)


@pytest.mark.parametrize("dtype", COLUMNS)
@given(st.data())
def test_filters(numba: Evaluator, dtype: Any, data: Any) -> None:  # M-041
    length = data.draw(lengths)
    values = data.draw(column(length, COLUMNS[dtype], dtype))
    count = data.draw(st.sampled_from([0, 1, 2, FEW, FEW + 1, 3 * FEW]))
    chosen = data.draw(st.lists(COLUMNS[dtype], max_size=count))
    wanted = np.unique(np.array([*chosen, *values[:count].tolist()][:count], dtype))
    mask = data.draw(column(length, st.booleans(), np.bool_))
    expected = [bool(mask[row]) and values[row] in wanted.tolist() for row in range(length)]
    for evaluator in (NUMPY, numba):
        kept = mask.copy()
        evaluator.keep_members(kept, frozen(values), wanted)
        assert kept.tolist() == expected, evaluator


@given(st.data())
def test_masks_carried_over_to_vectors(numba: Evaluator, data: Any) -> None:
    owners, length = data.draw(st.integers(1, 40)), data.draw(lengths)
    allowed = data.draw(column(owners, st.booleans(), np.bool_))
    numbers = np.flatnonzero(data.draw(column(length, st.booleans(), np.bool_)))
    rows = data.draw(column(len(numbers), st.integers(0, owners - 1), np.int64))
    expected = np.zeros(length, np.bool_)
    for number, row in zip(numbers.tolist(), rows.tolist(), strict=True):
        expected[number] = allowed[row]
    for evaluator in (NUMPY, numba):
        assert (evaluator.carry(numbers, rows, allowed, length) == expected).all(), evaluator


@given(st.data())
def test_the_newest(numba: Evaluator, data: Any) -> None:  # M-043
    length = data.draw(lengths)
    mask = data.draw(column(length, st.booleans(), np.bool_))
    created = frozen(data.draw(column(length, instants, np.int64)))
    ties = np.random.default_rng(length).integers(0, 3, (length, 2)).astype(np.uint64)
    limit = data.draw(st.integers(-1, length + 2))
    rows = [row for row in range(length) if mask[row]]
    rows.sort(key=lambda row: (-int(created[row]), *ties[row].tolist(), row))
    for evaluator in (NUMPY, numba):
        assert evaluator.newest(mask, created, ties, limit).tolist() == rows[: max(limit, 0)], evaluator


@given(st.data(), unit)
def test_relevance(numba: Evaluator, data: Any, neutral: float) -> None:  # C-453, C-455
    length = data.draw(lengths)
    similarity = data.draw(column(length, f32, np.float32))
    present = data.draw(column(length, st.booleans(), np.bool_))
    level = np.float32(neutral)
    expected = np.where(present, [min(max(value, 0.0), 1.0) for value in similarity.tolist()], level) + np.float32(0)
    twin = NUMPY.relevance(similarity, present, level)
    assert twin.tobytes() == numba.relevance(similarity, present, level).tobytes()
    assert twin.tolist() == expected.tolist()


# --- graphs -------------------------------------------------------------------------------------


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, Any, Any, Any]:
    nodes, edges = draw(st.integers(1, 12)), draw(st.integers(0, 40))
    ends = column(edges, st.integers(0, nodes - 1), np.int64)
    # Few weights, so that paths come out equal; tiny ones, so that scores run out.
    weights = draw(column(edges, st.one_of(st.sampled_from([0.0, 0.5, 1.0, 1e-30]), unit), np.float32))
    return nodes, draw(ends), draw(ends), weights


@given(st.integers(0, 2**32), st.integers(1, 4), st.sampled_from([0.5, 1.0]))
def test_walks_where_many_paths_are_equal(numba: Evaluator, seed: int, hops: int, decay: float) -> None:
    # Of equal scores the one after fewer hops stands, then the neighbour of the lowest number.
    random = np.random.default_rng(seed)
    nodes, edges = int(random.integers(2, 25)), int(random.integers(1, 120))
    sources, targets = random.integers(0, nodes, (2, edges))
    weights = random.choice(np.array([0.5, 1.0], np.float32), edges)
    seeds = random.integers(0, nodes, int(random.integers(1, 8)))
    scores = random.choice(np.array([0.5, 1.0], np.float32), len(seeds))
    expected = plain_walk(
        (nodes, sources, targets, weights), list(zip(seeds.tolist(), scores.tolist(), strict=True)), decay, hops, None
    )
    graph = csr(sources, targets, nodes, weights=weights, evaluator=numba)
    for evaluator in (NUMPY, numba):
        found = walk(graph, seeds, scores, decay=decay, max_hops=hops, evaluator=evaluator)
        assert list(zip(found.score.tolist(), found.hop.tolist(), found.via.tolist(), strict=True)) == expected
        _paths_hold(found, graph, None)


def same(left: Csr, right: Csr) -> None:
    for name in ("indptr", "indices", "weights", "edges"):
        one, other = getattr(left, name), getattr(right, name)
        assert one.dtype == other.dtype
        assert one.tobytes() == other.tobytes()


@given(graphs())
def test_rows_of_a_graph(numba: Evaluator, case: Any) -> None:
    nodes, sources, targets, weights = case
    graph = csr(sources, targets, nodes, weights=weights)
    same(graph, csr(sources, targets, nodes, weights=weights, evaluator=numba))
    assert graph.nodes == nodes
    expected = sorted(range(len(sources)), key=lambda edge: (sources[edge], targets[edge], edge))
    assert graph.edges.tolist() == expected
    assert graph.indices.tolist() == targets[expected].tolist()
    assert np.repeat(np.arange(nodes), np.diff(graph.indptr)).tolist() == sources[expected].tolist()
    for source in range(nodes):
        for target in range(nodes):
            between = [e for e in range(len(sources)) if (sources[e], targets[e]) == (source, target)]
            strongest = max(between, key=lambda edge: (weights[edge], -edge), default=-1)
            assert graph.edge(source, target) == strongest


def plain_walk(case: Any, seeds: Any, decay: float, hops: int, mask: Any) -> list[tuple[float, int, int]]:
    """Every edge, once a hop, from the scores of the hop before: the definition, without a frontier or rows."""
    nodes, sources, targets, weights = case
    seen = [True] * nodes if mask is None else mask.tolist()
    best = [(0.0, -1, -1)] * nodes
    for node, score in seeds:
        if seen[node] and score > best[node][0]:
            best[node] = (score, 0, -1)
    for hop in range(1, hops + 1):
        before = list(best)
        for source, target, weight in zip(sources.tolist(), targets.tolist(), weights.tolist(), strict=True):
            if not seen[target] or before[source][1] < 0:
                continue
            got = float(np.float32(before[source][0] * weight * float(np.float32(decay))))
            score, at, via = best[target]
            if got > score or (got == score and at == hop and source < via):
                best[target] = (got, hop, source)
    return best


@given(graphs(), st.data())
def test_walks(numba: Evaluator, case: Any, data: Any) -> None:  # M-024: the graph leg
    nodes, sources, targets, weights = case
    node = st.integers(0, nodes - 1)
    start = st.one_of(st.sampled_from([0.25, 0.5, 1.0]), unit, st.floats(0, 2.0**100, width=32))
    seeds = data.draw(st.lists(st.tuples(node, start), max_size=6))
    decay, hops = data.draw(st.one_of(unit, st.just(0.5))), data.draw(st.integers(0, 6))
    mask = data.draw(st.one_of(st.none(), column(nodes, st.booleans(), np.bool_)))
    graph = csr(sources, targets, nodes, weights=weights)
    starts = np.array([seed for seed, _ in seeds], np.int64)
    scores = np.array([score for _, score in seeds], np.float32)
    twin = walk(graph, starts, scores, decay=decay, max_hops=hops, mask=mask)
    jit = walk(graph, starts, scores, decay=decay, max_hops=hops, mask=mask, evaluator=numba)
    for name in ("score", "hop", "via"):
        assert getattr(twin, name).tobytes() == getattr(jit, name).tobytes(), name
    found = list(zip(twin.score.tolist(), twin.hop.tolist(), twin.via.tolist(), strict=True))
    assert found == plain_walk(case, [(n, float(s)) for n, s in zip(starts, scores, strict=True)], decay, hops, mask)
    # The order in which edges are listed decides nothing.
    order = np.random.default_rng(len(sources)).permutation(len(sources))
    other = csr(sources[order], targets[order], nodes, weights=weights[order], evaluator=numba)
    again = walk(other, starts, scores, decay=decay, max_hops=hops, mask=mask, evaluator=numba)
    assert again.score.tobytes() == twin.score.tobytes()
    assert again.via.tobytes() == twin.via.tobytes()
    _paths_hold(twin, graph, mask)


def _paths_hold(found: Walk, graph: Csr, mask: Any) -> None:
    """Every path leads along edges from a seed, through nothing hidden, and never in a circle."""
    for node in np.flatnonzero(found.hop >= 0).tolist():
        path = found.path(node)
        assert path[-1] == node
        assert len(set(path)) == len(path)
        assert found.hop[path[0]] == 0
        assert all(graph.edge(a, b) >= 0 for a, b in itertools.pairwise(path))
        assert mask is None or mask[path].all()
    assert found.path(int(np.argmin(found.hop))) == [] or (found.hop >= 0).all()


@given(graphs(), st.data())
def test_a_list_of_edges_and_its_graph(numba: Evaluator, case: Any, data: Any) -> None:
    nodes, sources, targets, weights = case
    edges = Edges()
    at = data.draw(st.integers(0, len(sources)))
    numbers = [
        edges.append(sources[:at], targets[:at], weights[:at]),
        edges.append(sources[at:], targets[at:], weights[at:]),
    ]
    assert np.concatenate(numbers).tolist() == list(range(len(sources)))
    whole = edges.csr(nodes, evaluator=numba)
    same(whole, csr(sources, targets, nodes, weights=weights))
    assert edges.csr(nodes) is whole, "built once"
    gone = data.draw(column(len(sources), st.booleans(), np.bool_))
    edges.retire(np.flatnonzero(gone))
    left = edges.csr(nodes)
    kept = np.flatnonzero(~gone)
    alone = csr(sources[kept], targets[kept], nodes, weights=weights[kept])
    assert len(edges) == len(kept)
    assert left.indices.tolist() == alone.indices.tolist()
    assert left.edges.tolist() == kept[alone.edges].tolist()
    assert len(whole.edges) == len(sources), "what was handed out does not change"


def test_graphs_refuse_bad_input(numba: Evaluator) -> None:
    one = np.array([0], np.int64)
    half = np.array([0.5], np.float32)
    for evaluator in (NUMPY, numba):
        for sources, targets in ((one, one + 5), (one - 1, one)):
            with pytest.raises(InvalidValue, match="leads out of the 3 nodes"):
                csr(sources, targets, 3, evaluator=evaluator)
        graph = csr(one, one + 1, 3, evaluator=evaluator)
        for seed in (one + 3, one - 1):
            with pytest.raises(InvalidValue, match="not one of the 3 nodes"):
                walk(graph, seed, half, decay=0.5, max_hops=1, evaluator=evaluator)
    for weights in (half * 3, -half):
        with pytest.raises(InvalidValue, match="between 0 and 1"):
            csr(one, one, 1, weights=weights)
    with pytest.raises(NonFiniteError):
        csr(one, one, 1, weights=half * np.float32(np.nan))
    with pytest.raises(ShapeError):
        csr(one, one, 1, weights=np.ones(2, np.float32))
    with pytest.raises(DTypeError):
        csr(one.astype(np.int32), one, 1)  # type: ignore[arg-type]
    for options, error in (
        ({"decay": 1.5, "max_hops": 1}, InvalidValue),
        ({"decay": -0.5, "max_hops": 1}, InvalidValue),
        ({"decay": math.nan, "max_hops": 1}, NonFiniteError),
        ({"decay": 0.5, "max_hops": -1}, InvalidValue),
        ({"decay": 0.5, "max_hops": 1, "mask": np.ones(2, np.bool_)}, ShapeError),
    ):
        with pytest.raises(error):
            walk(graph, one, half, **options)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="0 or more"):
        walk(graph, one, -half, decay=0.5, max_hops=1)
    with pytest.raises(InvalidValue):
        Edges().retire(one)


def test_numbers_outside_a_column_are_refused_and_not_followed(numba: Evaluator) -> None:
    instant = np.zeros(3, np.int64)
    rule = (Within(instant), Within(instant), Within(instant))
    live, ended = np.ones(3, np.bool_), np.zeros(3, np.uint8)
    for evaluator in (NUMPY, numba):
        for code in (-1, 2):
            codes = np.array([0, code, 0], np.int32)
            with pytest.raises(InvalidValue, match="outside"):
                evaluator.valid_rows(live, ended, rule, Allowed(codes, np.ones(2, np.bool_)))
        for row in (-1, 3):
            rows = np.array([0, row], np.int64)
            with pytest.raises(InvalidValue, match="outside"):
                evaluator.carry(np.arange(2), rows, live, 2)
            with pytest.raises(InvalidValue, match="outside"):
                evaluator.carry(rows, np.arange(2), live, 3)


# --- whole stores -------------------------------------------------------------------------------

vectors = st.one_of(st.none(), st.lists(st.floats(-1, 1, width=32), min_size=4, max_size=4))
days = st.one_of(st.none(), st.integers(-3, 3))


@st.composite
def records(draw: st.DrawFn) -> dict[str, Any]:
    texts = st.text("ab é\n", min_size=1, max_size=30)
    lists = st.sampled_from([None, ["planner"], ["executor", "agent:one"], ["agent:one"]])
    note = st.tuples(texts, vectors, days, days, lists, st.booleans(), st.sampled_from([None, 1.0, 5.5]))
    return {
        "notes": draw(st.lists(note, max_size=12)),
        "artifacts": draw(st.lists(st.tuples(texts, vectors, days, st.booleans()), max_size=8)),
        "summaries": draw(st.lists(texts, max_size=3)),
        "turns": draw(st.lists(texts, max_size=6)),
        "seen": draw(st.lists(st.booleans(), min_size=30, max_size=30)),
        "masked": draw(st.booleans()),
    }


def _stored(case: dict[str, Any]) -> Any:
    world = World()
    now = world.now()
    with world.at_once():
        world.open_space(4)
        for text, vector, start, end, roles, archived, importance in case["notes"]:
            world.note(
                text,
                vector,
                valid_from=None if start is None else _days(now, start),
                valid_until=None if end is None else _days(now, end),
                visible_to=roles,
                importance=importance,
                archived_at=now if archived else None,
            )
        for text, vector, expires, retired in case["artifacts"]:
            world.artifact(
                text,
                vector,
                expires_at=None if expires is None else _days(now, expires),
                retired_at=now if retired else None,
            )
        for text in case["summaries"]:
            world.scope(summary=text)
        world.scope_id = world.scope()
        for text in case["turns"]:
            world.turn(text)
    return world


def _days(now: Any, days: int) -> Any:
    return now + timedelta(days=days, seconds=1)


def _both(world: Any, numba: Evaluator) -> Iterator[Any]:
    resident = world.config.resident
    for evaluator in (NUMPY, numba):
        memory = ResidentMemory(world.store, resident_bytes=resident.resident_bytes, evaluator=evaluator)
        yield memory


@many
@given(
    records(),
    vectors,
    st.fixed_dictionaries(
        {"assembly.notes_without_query": st.integers(0, 8), "assembly.relevance": st.sampled_from(["search", "vector"])}
    ),
    st.fixed_dictionaries({"note_search_limit": st.integers(0, 8), "artifact_limit": st.integers(0, 6)}),
    st.integers(40, 600),
)
def test_windows_of_one_store_are_the_same_bytes(
    numba: Evaluator, case: dict[str, Any], query: Any, knobs: dict[str, Any], some: dict[str, Any], budget: int
) -> None:  # design section 5: equal canonical results, and the evaluator named in the window
    with pytest.MonkeyPatch.context() as patch:
        set_limits(patch, **some)
        _check_sameness(numba, case, query, knobs, budget)


def _check_sameness(numba: Evaluator, case: dict[str, Any], query: Any, knobs: dict[str, Any], budget: int) -> None:
    world = _stored(case)
    config = searching(**knobs)
    found = []
    for memory in _both(world, numba):
        snapshot = memory.snapshot
        mask = np.array((case["seen"] * 2)[: snapshot["note"].length], np.bool_) if case["masked"] else None
        inputs = world.inputs(
            snapshot=snapshot,
            config=config,
            query="note 1 of a",
            query_embedding=query,
            note_mask=mask,
            max_tokens=budget,
        )
        try:
            assembled = assemble(inputs, memory, Searcher(memory, config.search, KINDS))
        except BudgetTooSmall as error:
            found.append(("too small", str(error)))
            continue
        facts = unpack_record(assembled.record).facts
        assert facts.evaluator == snapshot.evaluator.name
        window = assembled.window
        found.append((window.text, window.to_messages(), window.assembly_trace, window.sections, _body(assembled)))
    assert found[0] == found[1]
    world.close()


def _body(assembled: Any) -> bytes:
    """The record without the one thing in it that may differ: the evaluator's name, which is as long in both."""
    raw = zlib.decompress(assembled.record[4:])
    names = (b'"evaluator":"numpy"', b'"evaluator":"numba"')
    assert sum(raw.count(name) for name in names) == 1
    return bytes(raw.replace(*names))


OWNER = Principal(PrincipalKind.HUMAN, "owner", is_admin=True)
DOER = Principal(PrincipalKind.AGENT, "one", AgentRole.EXECUTOR)
CONDITIONS: list[dict[str, Any]] = [
    {},
    {"importance": 5.5},
    {"importance": [1, 5.5, 7, 2**70, math.inf]},
    {"created_at": [2.5, -1]},
    {"note_type": ["fact", "convention"]},
]


@many
@given(
    records(),
    vectors,
    st.sampled_from(["", "a b", "é"]),
    st.sampled_from([OWNER, DOER]),
    st.sampled_from(CONDITIONS),
    st.integers(1, 9),
    st.integers(-4, 4),
)
def test_searches_of_one_store_find_the_same(
    numba: Evaluator,
    case: dict[str, Any],
    query: Any,
    text: str,
    principal: Principal,
    conditions: dict[str, Any],
    limit: int,
    days: int,
) -> None:  # M-041, M-043, M-118
    world = _stored(case)
    now = world.clock.now_us()
    found = []
    for memory in _both(world, numba):
        snapshot = memory.snapshot
        relations = [snapshot[kind].relation for kind in ("note", "artifact", "turn", "scope")]
        predicates = conditions_of(relations, conditions)
        where = Where(predicates, {}) if conditions else None
        request = Request(
            snapshot=snapshot,
            text=text,
            vector=None if query is None else np.array(query, np.float32),
            without_vector="none was drawn",
            space_id=world.space.space_id,
            kinds=[relation.name for relation in relations if not conditions or relation.name in predicates],
            limit=limit,
            where=where,
            readers=Readers(TaskOwners(memory, lambda: 0, world.config.access, world.store.catalog), principal),
            as_of_us=now + days * 86_400_000_000,
            now_us=now,
        )
        outcome = Searcher(memory, world.config.search, KINDS).search(request)
        found.append([(hit.relation.entity_id(hit.row), hit.score, hit.breakdown) for hit in outcome.found])
        notes = snapshot["note"]
        if notes.length and "importance" in conditions:
            met = mask(predicates["note"], notes, {}, held_texts)
            wanted = [v for v in np.atleast_1d(conditions["importance"]).tolist() if v in (1, 5.5)]
            assert met.tolist() == (notes.live_mask & np.isin(notes.column("importance"), wanted)).tolist()
    assert found[0] == found[1]
    world.close()
