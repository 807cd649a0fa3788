"""Dataclasses of `jsbackup.records` against the same classes of the standard library."""

from __future__ import annotations

import ast
import copy
import dataclasses
import inspect
import math
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, astuple, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import pytest

import jsbackup
from jsbackup.records import dataclass

T = TypeVar("T")


def _classes(made: Callable[[type], Any]) -> tuple[Any, ...]:
    class Point(Generic[T]):
        """A point."""

        kind: ClassVar[str] = "point"
        x: int
        y: float = 0.5
        names: list[str] = field(default_factory=list)
        note: str = field(default="", compare=False, repr=False)

        @property
        def double(self) -> int:
            return self.x * 2

    class One:
        only: object

    class Empty:
        """Nothing."""

    class Same:
        """Equal whatever it holds."""

        held: int

        def __eq__(self, other: object) -> bool:
            return isinstance(other, type(self))

        def __repr__(self) -> str:
            return "the same"

    class Late:
        """Has more to do."""

        seen: list[int]

        def __post_init__(self) -> None:
            self.seen.append(len(self.seen))

    return tuple(made(one) for one in (Point, One, Empty, Same, Late))


OURS = _classes(dataclass(frozen=True, slots=True))
THEIRS = _classes(dataclasses.dataclass(frozen=True, slots=True))
Point, One, Empty, Same, Late = OURS
# Pickle finds classes by their names.
for _made in OURS:
    _made.__qualname__ = _made.__name__


@pytest.mark.parametrize(("ours", "theirs"), list(zip(OURS, THEIRS, strict=True)), ids=lambda made: made.__name__)
def test_a_class_is_as_that_of_the_standard_library(ours: Any, theirs: Any) -> None:
    assert is_dataclass(ours)
    taken, expected = (inspect.signature(made).parameters.values() for made in (ours, theirs))
    assert [(one.name, one.kind, one.annotation) for one in taken] == [
        (one.name, one.kind, one.annotation) for one in expected
    ]
    assert [(f.name, f.type, f.default, f.init, f.compare) for f in fields(ours)] == [
        (f.name, f.type, f.default, f.init, f.compare) for f in fields(theirs)
    ]
    assert ours.__slots__ == theirs.__slots__
    assert ours.__match_args__ == theirs.__match_args__
    assert ours.__dataclass_params__.frozen and theirs.__dataclass_params__.frozen
    assert set(vars(theirs)) - set(vars(ours)) == set()
    assert ours.__init__.__annotations__ == theirs.__init__.__annotations__


@pytest.mark.parametrize("made", [Point, THEIRS[0]], ids=["ours", "theirs"])
def test_objects_behave_as_those_of_the_standard_library(made: Any) -> None:
    one = made(3, names=["a"], note="not compared")
    assert (one.x, one.y, one.names, one.note, one.double, one.kind) == (3, 0.5, ["a"], "not compared", 6, "point")
    assert repr(one).endswith("Point(x=3, y=0.5, names=['a'])")
    assert one == made(3, 0.5, ["a"], "else") and one != made(4, 0.5, ["a"])
    assert one != (3, 0.5, ["a"]) and one.__eq__(one.double) is NotImplemented
    assert made(3).names is not made(3).names
    assert replace(one, x=5) == made(5, 0.5, ["a"]) and asdict(one)["names"] == ["a"] and astuple(one)[0] == 3
    assert copy.deepcopy(one) == one and copy.copy(one).note == "not compared"
    match one:
        case made(x, y):
            assert (x, y) == (3, 0.5)
    with pytest.raises(TypeError, match="hash"):
        hash(one)
    with pytest.raises(TypeError, match="__init__"):
        made()
    for change in (lambda: setattr(one, "x", 1), lambda: setattr(one, "other", 1), lambda: delattr(one, "x")):
        with pytest.raises((FrozenInstanceError, TypeError)):
            change()
    assert one.x == 3 and not hasattr(one, "__dict__")


def test_objects_can_be_pickled_and_hashed() -> None:
    one = Point(3, names=["a"], note="n")
    assert (pickle.loads(pickle.dumps(one)).note, pickle.loads(pickle.dumps(one))) == ("n", one)
    assert hash(One("x")) == hash(One("x")) and len({One("x"), One("x"), One("y")}) == 2
    assert Empty() == Empty() and len({Empty(), Empty()}) == 1
    assert One(math.nan) != One(float("nan")) and One(math.nan) == One(math.nan)  # as tuples compare


@pytest.mark.parametrize("made", [Same, THEIRS[3]], ids=["ours", "theirs"])
def test_written_methods_stay(made: Any) -> None:
    assert made(1) == made(2) and repr(made(1)) == "the same"
    assert hash(made(1)) == hash(made(1)) != hash(made(2))


def test_what_follows_the_fields_is_called() -> None:
    seen: list[int] = []
    assert Late(seen).seen is seen and seen == [0]


def test_a_class_shows_itself_within_itself() -> None:
    held: list[object] = []
    held.append(One(held))
    assert repr(held) == "[" + One.__qualname__ + "(only=[...])]"


def test_subclasses_and_other_kinds_are_left_to_the_standard_library() -> None:
    @dataclass(frozen=True, slots=True)
    class Base:
        """A base."""

        a: int

    @dataclass(frozen=True, slots=True)
    class Below(Base):
        """Below it."""

        b: int = 2

    @dataclass(slots=True)
    class Loose:
        """May change."""

        a: int

    @dataclass
    class Bare:
        """May change, too."""

        a: int

    @dataclass(frozen=True, slots=True)
    class Derived:
        """Has a field that comes from another."""

        a: int = 1
        b: int = field(init=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "b", self.a + 1)

    assert (Derived().b, Derived(4).b) == (2, 5)
    assert repr(Below(1)).endswith("Below(a=1, b=2)") and Below(1) == Below(1, 2) != Base(1)
    with pytest.raises(FrozenInstanceError):
        Below(1).a = 2  # type: ignore[misc]
    loose, bare = Loose(1), Bare(1)
    loose.a = bare.a = 5
    assert (loose, bare) == (Loose(5), Bare(5))


def test_all_of_jsbackup_makes_them_so() -> None:
    """A module that takes the decorator from the standard library takes four times as long for each class."""
    folder = Path(jsbackup.__file__).parent
    slow = []
    for path in folder.rglob("*.py"):
        text = path.read_text()
        if path.name != "records.py" and "@dataclass(frozen=True, slots=True)" in text:
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ImportFrom) and node.module == "dataclasses":
                    slow += [str(path.relative_to(folder)) for name in node.names if name.name == "dataclass"]
    assert slow == []
