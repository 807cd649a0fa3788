"""The values that `--set` accepts for fields with parts: objects, lists of objects, and metadata.

Servers refuse an unknown name inside of an object, or a value of another type, when the restore has begun.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from jsbackup.config import nearest

__all__ = ["OURS", "Shape", "has_shape", "problem_of", "shape_of"]

# The type of a value, the fields of an object, or a list of one element: the shape of all elements.
Shape: TypeAlias = "type | Mapping[str, Shape] | list[Shape]"

_TRANSFORM: Mapping[str, Shape] = {"src": str, "dest": str}
_UPSTREAM: Mapping[str, Shape] = {
    "name": str,
    "opt_start_seq": int,
    "opt_start_time": str,
    "filter_subject": str,
    "subject_transforms": [_TRANSFORM],
    "external": {"api": str, "deliver": str},
    "consumer": {"name": str, "deliver_subject": str},
}
_SHAPES: Mapping[str, Shape] = {
    "mirror": _UPSTREAM,
    "sources": [_UPSTREAM],
    "subject_transform": _TRANSFORM,
    "placement": {"cluster": str, "tags": [str], "preferred": str},
    "republish": {"src": str, "dest": str, "headers_only": bool},
    "consumer_limits": {"inactive_threshold": int, "max_ack_pending": int},
}
_NANOSECONDS = frozenset({"inactive_threshold"})
_TYPES: Mapping[type, str] = {str: "a string", int: "a whole number", bool: "true or false"}

OURS = "jsbackup."
"""What metadata keys of jsbackup begin with. They mark half-made streams and copies, which later commands remove."""


def shape_of(field: str, kind: type) -> Shape:
    """Return what the value of a field of this type has to be."""
    return [str] if field == "subjects" else _SHAPES.get(field, {} if kind is dict else kind)


def has_shape(value: Any, shape: Shape) -> bool:
    """Return whether a value that a server wrote, perhaps a newer one, can be read; null is the same as absent."""
    return _problem(value, shape, "", strict=False) is None


def problem_of(field: str, value: Any) -> tuple[str, str] | None:
    """Return what is wrong with the parts of a field's value, and a hint ("" for none); None if nothing is."""
    if field == "metadata":
        return _problem_of_metadata(value)
    if field not in _SHAPES:
        return None
    if problem := _problem(value, _SHAPES[field], ""):
        return problem
    for one in value if field == "sources" else [value] if field == "mirror" else ():
        if not isinstance(one, dict) or not one.get("name"):
            return "has no name of a stream", 'Write for example {"name": "ORDERS"}.'
    return None


def _problem_of_metadata(value: Mapping[str, Any]) -> tuple[str, str] | None:
    for key, text in value.items():
        if key.startswith(OURS):
            return f"the key {key[:80]!r} is one that jsbackup sets itself", "Leave it out, or choose another key."
        if not isinstance(text, str):
            return f"{key[:80]} must be a string", 'Metadata have strings only, such as "1".'
    return None


def _problem(value: Any, shape: Shape, where: str, *, strict: bool = True) -> tuple[str, str] | None:
    if value is None:  # as if it were left out
        return None
    at = f"{where} " if where else ""
    if isinstance(shape, type):
        if isinstance(value, shape) and (shape is bool or not isinstance(value, bool)):
            return None
        unit = " of nanoseconds" if where.rpartition(".")[2] in _NANOSECONDS else ""
        return f"{at}must be {_TYPES[shape]}{unit}", ""
    if isinstance(shape, list):
        if not isinstance(value, list) or None in value:
            return f"{at}must be a list without null", ""
        return next((found for one in value if (found := _problem(one, shape[0], where, strict=strict))), None)
    if not isinstance(value, dict):
        return f"{at}must be an object", ""
    for name, part in value.items():
        if name not in shape:
            if not strict:
                continue
            return f"{at}has no field {name[:80]!r}", nearest(name, list(shape)) or f"Fields: {', '.join(shape)}."
        if found := _problem(part, shape[name], f"{where}.{name}" if where else name, strict=strict):
            return found
    return None
