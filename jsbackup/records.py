"""`dataclass` of the standard library, but plain frozen classes with slots are made in a third of the time.

The standard library writes and compiles up to seven methods of such a class, which takes half a millisecond. A backup
imports 170 of them: that was a fifth of its start. Here only `__init__` is compiled. The other methods are closures
that read the fields by an `attrgetter`.

What comes out is a dataclass: `fields`, `replace`, `asdict`, `match` and pickles work as with one of the standard
library; `tests/test_records.py` compares them. All other kinds of dataclasses, those that inherit from one, and those
with fields that `__init__` does not take, are left to the standard library. Type checkers see only that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, FrozenInstanceError
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

_set = object.__setattr__

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls=None, /, **options):
        """As `dataclasses.dataclass`."""
        if cls is None and options == {"frozen": True, "slots": True}:
            return _frozen_with_slots
        return dataclasses.dataclass(cls, **options)


def _frozen_with_slots(cls: Any) -> Any:
    options = [value for value in vars(cls).values() if isinstance(value, Field)]
    if any(map(dataclasses.is_dataclass, cls.__bases__)) or not all(one.init for one in options):
        return dataclasses.dataclass(frozen=True, slots=True)(cls)
    if cls.__doc__ is None:
        cls.__doc__ = cls.__name__  # else `dataclasses` makes one of the signature, which takes as long again
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True)(cls)
    params = made.__dataclass_params__
    params.init = params.repr = params.eq = params.frozen = True
    fields = dataclasses.fields(made)
    for method in (
        _make_init(made, fields),
        _make_repr([field.name for field in fields if field.repr]),
        *_make_comparisons(_values_of(field.name for field in fields if field.compare)),
        *_SHARED,
    ):
        if cls.__dict__.get(method.__name__) is None:  # `__hash__` is None where only `__eq__` is written
            setattr(made, method.__name__, method)
    return made


def _make_init(made: type, fields: Iterable[Field[Any]]) -> Any:
    """Return an `__init__` that sets the fields past `__setattr__`, which refuses it."""
    known: dict[str, object] = {"_set": _set, "_MISSING": MISSING}
    parameters, lines = ["self"], []
    for field in fields:
        parameter = value = field.name
        if field.default is not MISSING:
            known[f"_default_{field.name}"] = field.default
            parameter += f"=_default_{field.name}"
        elif field.default_factory is not MISSING:
            known[f"_make_{field.name}"] = field.default_factory
            parameter += "=_MISSING"
            value = f"_make_{field.name}() if {field.name} is _MISSING else {field.name}"
        parameters.append(parameter)
        lines.append(f" _set(self, {field.name!r}, {value})")
    if hasattr(made, "__post_init__"):
        lines.append(" self.__post_init__()")
    exec("\n".join([f"def __init__({', '.join(parameters)}):", *(lines or [" pass"])]), known)
    init: Any = known["__init__"]
    init.__module__, init.__qualname__ = made.__module__, f"{made.__qualname__}.__init__"
    init.__annotations__ = {field.name: field.type for field in fields} | {"return": None}
    return init


def _values_of(names: Iterable[str]) -> Callable[[Any], object]:
    """Return a function that returns the values of these fields, a tuple."""
    given = tuple(names)
    if len(given) > 1:
        return attrgetter(*given)
    return lambda self: tuple(getattr(self, name) for name in given)


def _make_repr(names: list[str]) -> Callable[[Any], str]:
    @recursive_repr()
    def __repr__(self: Any) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__qualname__}({shown})"

    return __repr__


def _make_comparisons(values_of: Callable[[Any], object]) -> tuple[Callable[..., object], ...]:
    def __eq__(self: Any, other: object) -> bool:
        return values_of(self) == values_of(other) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self: Any) -> int:
        return hash(values_of(self))

    return __eq__, __hash__


def __setattr__(self: Any, name: str, _value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def __delattr__(self: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def __getstate__(self: Any) -> list[object]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def __setstate__(self: Any, state: list[object]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        _set(self, field.name, value)


_SHARED = (__setattr__, __delattr__, __getstate__, __setstate__)
