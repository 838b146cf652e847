"""Classes of ``caliber.model.lazy_dataclass`` behave as those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
import pickle
import pkgutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from support.interrupted import EveryLineOnce, in_files
from support.threads import at_once

import caliber
from caliber.model.lazy_dataclass import dataclass


def _two(name: str, make: Callable[[Any], type]) -> tuple[Any, Any]:
    """Return the same class by the standard decorator and by ours."""
    standard, ours = make(dataclasses.dataclass(frozen=True, slots=True)), make(dataclass(frozen=True, slots=True))
    assert standard.__qualname__ == ours.__qualname__, name
    return standard, ours


def _point(decorate: Any) -> type:
    class Point:
        x: float
        y: float = 2.5
        known: ClassVar[int] = 3

    return decorate(Point)


def _shape(decorate: Any) -> type:
    class Shape:
        name: str
        corners: list[Any] = dataclasses.field(default_factory=list)
        area: float = dataclasses.field(default=1.0, compare=False)
        secret: str = dataclasses.field(default="s", repr=False, hash=False)
        tag: str = dataclasses.field(kw_only=True)
        fixed: int = dataclasses.field(default=7, init=False)
        made: dict[str, int] = dataclasses.field(default_factory=dict, init=False, hash=False)
        later: int = dataclasses.field(init=False, hash=False, compare=False)

        def __post_init__(self) -> None:
            if self.area < 0:
                raise ValueError("area")
            object.__setattr__(self, "later", len(self.corners))

    return decorate(Shape)


def _empty(decorate: Any) -> type:
    class Empty:
        """A class without fields."""

    return decorate(Empty)


def _outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return type(error), str(error)


NAN = float("nan")
CALLS: list[Callable[[Any, Any], Any]] = [
    lambda point, shape: repr(point(1)),
    lambda point, shape: (point(1) == point(1), point(1) == point(2), point(1) == 1, point(NAN) == point(NAN)),
    lambda point, shape: hash(point(1)) == hash((1, 2.5)),
    lambda point, shape: point(),
    lambda point, shape: point(1, 2, 3),
    lambda point, shape: point(x=1, z=2),
    lambda point, shape: setattr(point(1), "x", 2),
    lambda point, shape: delattr(point(1), "x"),
    lambda point, shape: (point.__match_args__, point.__slots__, point.known, dataclasses.is_dataclass(point)),
    lambda point, shape: repr(dataclasses.replace(point(1), y=9)),
    lambda point, shape: (dataclasses.asdict(point(1)), dataclasses.astuple(point(1)), copy.copy(point(1)).y),
    lambda point, shape: str(inspect.signature(point)),
    lambda point, shape: repr(shape("a", tag="t")),
    lambda point, shape: shape("a", "t"),
    lambda point, shape: shape("a", area=-1, tag="t"),
    lambda point, shape: shape("a", tag="t", fixed=3),
    lambda point, shape: shape("a", tag="t", area=5) == shape("a", tag="t"),
    lambda point, shape: shape("a", tag="t").corners is shape("a", tag="t").corners,
    lambda point, shape: hash(shape("a", (), tag="t", secret="q")) == hash(shape("a", (), tag="t")),
    lambda point, shape: hash(shape("a", tag="t")),
    lambda point, shape: (shape("a", [1, 2], tag="t").later, shape("a", tag="t").made, shape("a", tag="t").fixed),
    lambda point, shape: str(inspect.signature(shape)),
    lambda point, shape: [(item.name, item.type, item.kw_only) for item in dataclasses.fields(shape)],
    lambda point, shape: point.__init__.__qualname__.rpartition(".")[2],
]


@pytest.mark.parametrize("at", range(len(CALLS)))
def test_class_answers_as_a_standard_one(at: int) -> None:
    points, shapes = _two("point", _point), _two("shape", _shape)
    standard, ours = (_outcome(lambda i=i: CALLS[at](points[i], shapes[i])) for i in range(2))
    assert ours == standard


def test_class_without_fields() -> None:
    standard, ours = _two("empty", _empty)
    assert repr(ours()) == repr(standard())
    assert ours() == ours()
    assert hash(ours()) == hash(standard())
    assert _outcome(lambda: ours(1)) == _outcome(lambda: standard(1))


@dataclass(frozen=True, slots=True)
class Ring:
    name: str
    inner: list[Any]


@dataclass(frozen=True, slots=True)
class Marked(Ring):
    mark: int = 0


class Loud(Ring):
    def __init__(self, name: str) -> None:
        super().__init__(name, [])
        self.volume = 11

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other)

    __hash__ = None  # type: ignore[assignment]


def test_inheritance_pickles_and_circles() -> None:
    ring = Ring("a", [])
    ring.inner.append(ring)
    assert repr(ring) == "Ring(name='a', inner=[...])"
    assert pickle.loads(pickle.dumps(Ring("b", [1]))) == Ring("b", [1])
    assert copy.deepcopy(Ring("b", [1])) == Ring("b", [1])
    assert Marked("c", [], 2) != Ring("c", [])
    assert repr(Marked("c", [], 2)) == "Marked(name='c', inner=[], mark=2)"
    assert Loud("d") == Loud("d")
    assert Loud("d").volume == 11
    with pytest.raises(dataclasses.FrozenInstanceError):
        Loud("d").name = "e"  # type: ignore[misc]
    # The standard class does not know itself once it has slots, and raises a TypeError that names no field.
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'z'"):
        setattr(Ring("e", []), "z", 2)  # noqa: B010
    with pytest.raises(TypeError, match="non-frozen"):
        dataclasses.dataclass(type("Loose", (Ring,), {"__annotations__": {"more": "int"}}))


def test_threads_may_make_the_first_instance_together() -> None:
    for _ in range(50):
        _, point = _two("point", _point)
        barrier, found = threading.Barrier(4), list[Any]()

        def make(point: Any = point, barrier: Any = barrier, found: Any = found) -> None:
            barrier.wait()
            found.append(point(1))

        at_once([make] * 4)
        assert found == [point(1)] * 4


def _lazy_classes() -> Iterator[type]:
    for module in pkgutil.walk_packages(caliber.__path__, "caliber."):
        if module.name == "caliber.__main__":
            continue
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, type) and value.__module__ == module.name and dataclasses.is_dataclass(value):
                params = value.__dataclass_params__  # type: ignore[attr-defined]
                if params.frozen and not params.init:
                    yield value


def test_every_class_of_the_package_has_the_standard_signature() -> None:
    found = list(_lazy_classes())
    assert len(found) > 200
    for cls in found:
        body = {item.name: item for item in dataclasses.fields(cls)}  # type: ignore[arg-type]
        twin = type(cls.__name__, (), {**body, "__annotations__": {name: item.type for name, item in body.items()}})
        assert str(inspect.signature(cls)) == str(inspect.signature(dataclasses.dataclass(frozen=True)(twin))), cls


def test_methods_are_compiled_at_their_first_use() -> None:
    _, point = _two("point", _point)
    assert not inspect.isfunction(vars(point)["__init__"])
    point(1)
    assert inspect.isfunction(vars(point)["__init__"])
    before = vars(point)["__eq__"]
    assert point(1) == point(1)
    assert vars(point)["__eq__"] is not before


@pytest.mark.parametrize(
    "use", [lambda a, b: a == b or pytest.fail("they are equal"), lambda a, b: hash(a), lambda a, b: repr(a)],
    ids=["eq", "hash", "repr"],
)  # fmt: skip
def test_what_a_signals_handler_raises_while_a_method_is_compiled_reaches_the_caller(use: Callable[..., Any]) -> None:
    def work() -> None:
        _, point = _two("point", _point)
        use(point(1), point(1))

    lines, lost = EveryLineOnce(in_files("model/lazy_dataclass.py")).lost(work)
    assert not lost
    assert lines > 20


def test_no_frozen_class_with_slots_compiles_its_methods_at_once() -> None:
    found = []
    for file in Path(caliber.__file__).parent.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        if "dataclass(frozen=True, slots=True)" in text and "lazy_dataclass import dataclass" not in text:
            found.append(file.name)
    assert found == ["lazy_dataclass.py"], "import dataclass from caliber.model.lazy_dataclass"


def test_what_people_print_is_one_line() -> None:
    with caliber.open(caliber.profiles.chat_companion(":memory:", embedding_provider=None), create=True) as memory:
        told = [{"role": "user", "content": "My dog is called Pixel.\n" + "I like long walks.\n" * 50}]
        learned = memory.remember(told, user="ana")
        window = memory.assemble_context(learned.trajectory_id)
        found = memory.search("Pixel", user="ana")
        shown = [repr(each) for each in (learned, window, found, found.hits[0])]
    assert [text for text in shown if len(text) > 160 or "\n" in text or not text.endswith(")")] == []
    assert shown[0].startswith("Learned(done, 1 turns, task ")
    assert f"{window.used_tokens} of {window.max_tokens} tokens" in shown[1]
    assert "Pixel" in shown[2]
    assert pickle.loads(pickle.dumps(found)) == found
