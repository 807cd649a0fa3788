"""Read YAML that people or kubectl wrote. Hostile input: no objects of Python, no aliases (a few bytes of them become
gigabytes), limited size and depth. A name that an object has twice is an error.
"""

from __future__ import annotations

from typing import Any

import yaml

from jsbackup.errors import UsageError

__all__ = ["read_yaml"]

_MAX_DEPTH = 32
_MAX_BYTES = 16 << 20


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Times stay texts, as for Kubernetes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it has aliases")
        self.depth = getattr(self, "depth", 0) + 1
        if self.depth > _MAX_DEPTH:
            raise yaml.YAMLError(f"it is nested deeper than {_MAX_DEPTH} levels")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if len(names) != len(node.value):
            raise yaml.YAMLError("a name is not a text")
        if len(set(names)) != len(names):
            raise yaml.YAMLError(f"it has a name twice in line {node.start_mark.line + 1}")
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag != "tag:yaml.org,2002:timestamp"]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_yaml(data: bytes, what: str) -> list[Any]:
    """Return the documents in `data`. Raises `UsageError` if it is not such YAML; `what` begins its message."""
    if len(data) > _MAX_BYTES:
        raise UsageError(f"{what} has more than {_MAX_BYTES} bytes")
    try:
        return list(yaml.load_all(str(data, "utf-8"), Loader=_Loader))  # a safe loader
    except UnicodeDecodeError:
        problem = "it is not UTF-8"
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" in line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        problem = f"{error.problem or 'it cannot be parsed'}{place}"
    except yaml.YAMLError as error:
        problem = str(error).partition("\n")[0]
    except (ValueError, RecursionError):  # such as a number of too many digits
        problem = "it has a value that cannot be read"
    raise UsageError(f"{what} is not YAML: {problem}")
