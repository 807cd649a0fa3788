"""The table of layers: what each package may import. A reader of this dict knows the direction of every arrow."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

# What is found in the files is remembered: one process looks at all of them.
pytestmark = pytest.mark.xdist_group("layering")

ROOT = Path(__file__).parent.parent / "jsbackup"

BASE = {
    "errors",
    "exit_codes",
    "failure",
    "model",
    "strict_json",
    "server_state",
    "times",
    "names",
    "config",
    "progress",
    "tool",
    "readable",
    "shell",
}

# What every package may import: it stands in for the standard library.
FOR_ALL = ("", "__version__")

# package or top module -> (packages of jsbackup it may import, third-party packages it may import)
LAYERS: dict[str, tuple[set[str], set[str]]] = {
    "errors": (set(), set()),
    "model": ({"errors"}, set()),
    "exit_codes": ({"errors"}, set()),
    "failure": ({"errors"}, set()),
    "strict_json": ({"errors", "model", "names", "readable", "times"}, set()),
    "server_state": ({"errors", "model", "strict_json", "times"}, set()),
    "times": ({"errors"}, set()),
    "names": ({"errors"}, set()),
    "tool": (set(), set()),
    "readable": (set(), set()),
    "shell": (set(), set()),
    "html": ({"readable", "config"}, {"jinja2", "markupsafe"}),
    "memory": (set(), set()),
    "compute": (set(), {"pyarrow"}),
    "progress": ({"errors", "model"}, set()),
    "config": ({"errors", "model", "strict_json", "times", "names"}, set()),
    "protocol": ({"errors", "model", "strict_json", "server_state", "times", "names", "readable"}, set()),
    "formats": (
        {"errors", "model", "strict_json", "server_state", "times", "names", "compute"},
        {"pyarrow", "zstandard", "cramjam", "google_crc32c", "typing_extensions"},
    ),
    "stores": ({"errors", "model"}, set()),
    "repository": (
        BASE | {"memory", "compute", "formats", "stores"},
        {"pyarrow", "zstandard"},
    ),
    "transforms": ({"errors", "model", "strict_json", "times", "names", "compute", "config", "formats"}, {"pyarrow"}),
    "exchange": (
        {"errors", "failure", "model", "strict_json", "times", "progress", "tool", "compute", "formats", "stores"}
        | {"config", "names", "server_state", "repository", "planning"},
        {"pyarrow", "yaml"},
    ),
    "planning": (BASE | {"protocol", "formats", "stores", "repository", "transforms"}, {"pyarrow"}),
    "look": (
        BASE | {"memory", "compute", "protocol", "formats", "stores", "repository", "transforms", "planning"},
        {"pyarrow"},
    ),
    "engine": (
        BASE | {"compute", "protocol", "formats", "stores", "repository", "transforms", "planning"},
        {"pyarrow"},
    ),
    "putting_back": (
        BASE | {"protocol", "formats", "repository", "transforms", "planning", "look", "engine"},
        set(),
    ),
    "pipeline": (
        BASE
        | {"memory", "formats", "stores", "repository", "exchange", "engine", "transforms", "planning", "putting_back"},
        {"pyarrow", "pyspark", "py4j", "deltalake", "duckdb", "pyiceberg", "sqlalchemy"},
    ),
    # It imports pyspark for types alone.
    "api": (
        BASE
        | {"formats", "stores", "repository", "transforms", "planning", "look", "exchange"}
        | {"engine", "putting_back", "pipeline"},
        {"pyarrow", "pyspark"},
    ),
    # `overview.py` needs no package that is not always installed: the page of `status` shows it too.
    "browse": (
        BASE | {"memory", "formats", "stores", "repository", "transforms", "planning", "look", "engine", "api", "html"},
        {"anyio", "jinja2", "markupsafe", "starlette", "uvicorn"},
    ),
    "cli": (
        BASE
        | {"memory", "protocol", "formats", "stores", "repository", "transforms", "exchange", "planning", "engine"}
        | {"look", "putting_back", "pipeline", "api", "html", "browse"},
        {"click", "jinja2", "prometheus_client", "tqdm"},
    ),
    "__main__": ({"cli"}, set()),
    "__init__": ({"errors", "config", "planning", "putting_back", "api"}, set()),
}

# Third-party imports that belong to few files alone, and files that may be imported from one place alone.
DOORS = {
    "nats": {"engine/link/connection.py"},
    "nkeys": {"engine/link/connection.py"},
    "cryptography": {
        "repository/crypto/signing.py",
        "repository/crypto/keys.py",
        "repository/crypto/age.py",
        "formats/server_store/ciphers.py",
    },
    "pyrage": {"repository/crypto/age.py"},
    "boto3": {"stores/s3_client.py"},
    "botocore": {"stores/s3_client.py"},
    "urllib3": {"stores/s3_client.py"},
    "yaml": {"exchange/declared/nack.py"},
}


# One test looks at all files, and names each one that is wrong: seven hundred tests of one file each take ten times as
# long as parsing it.
@cache
def _files() -> tuple[Path, ...]:
    return tuple(sorted(p for p in ROOT.rglob("*.py") if "__pycache__" not in p.parts))


def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def _used(path: Path) -> tuple[frozenset[str], frozenset[str]]:
    """Absolute module names that a file imports, wherever in the file, and names of attributes in it."""
    imports: set[str] = set()
    attributes: set[str] = set()
    for node in ast.walk(_parsed(path)):
        if isinstance(node, ast.Import):
            imports |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            if node.module == "jsbackup":
                imports |= {f"jsbackup.{alias.name}" for alias in node.names}
            else:
                imports.add(node.module)
        elif isinstance(node, ast.Attribute):
            attributes.add(node.attr)
    return frozenset(imports), frozenset(attributes)


def _imports(path: Path) -> frozenset[str]:
    return _used(path)[0]


def _attributes(path: Path) -> frozenset[str]:
    return _used(path)[1]


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _layer(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def test_every_package_has_a_place_in_the_table() -> None:
    assert {_layer(path) for path in _files()} <= set(LAYERS)


def test_imports_follow_the_table() -> None:
    assert [wrong for path in _files() for wrong in _wrong_imports(path)] == []


def _wrong_imports(path: Path) -> Iterator[str]:
    layer = _layer(path)
    inner, outer = LAYERS[layer]
    for name in sorted(_imports(path)):
        top, _, rest = name.partition(".")
        if top == "jsbackup":
            target = rest.split(".")[0]
            if target not in (*FOR_ALL, layer, *inner):
                yield f"{_name(path)}: {layer} must not import {name}"
        elif top not in sys.stdlib_module_names:
            doors = DOORS.get(top)
            if doors is None and top not in outer:
                yield f"{_name(path)}: {layer} must not import {name}"
            elif doors is not None and _name(path) not in doors:
                yield f"{_name(path)}: {name} is imported in {doors} only"


def test_only_what_waits_for_servers_is_asynchronous() -> None:
    others = [path for path in _files() if _layer(path) not in ("engine", "putting_back", "api", "cli")]
    assert [_name(path) for path in others if "asyncio" in _imports(path)] == []


def test_no_values_go_through_numpy() -> None:
    """jsbackup does not install it, and Arrow does not either: it is there or not."""
    imported = [path for path in _files() if "numpy" in _imports(path)]
    assert [_name(path) for path in [*imported, *(p for p in _files() if "to_numpy" in _attributes(p))]] == []


def test_the_environment_is_read_in_config_only() -> None:
    others = [path for path in _files() if _layer(path) != "config"]
    assert [_name(path) for path in others if not _attributes(path).isdisjoint({"environ", "getenv"})] == []


# --- rooms ---


def _floors() -> list[Path]:
    return sorted({path.parent for path in _files()})


@pytest.mark.parametrize("floor", _floors(), ids=lambda p: str(p.relative_to(ROOT.parent)))
def test_a_package_says_what_it_is_for(floor: Path) -> None:
    assert ast.get_docstring(_parsed(floor / "__init__.py"))


def test_no_imports_go_round_in_a_circle() -> None:
    """Those inside functions count; those for the type checker alone do not."""
    modules = {_module(path): path for path in _files()}
    arrows = {name: _imported_modules(path, modules) - {name} for name, path in modules.items()}
    while free := [name for name, found in arrows.items() if not found]:
        for name in free:
            del arrows[name]
        arrows = {name: found - set(free) for name, found in arrows.items()}
    assert not arrows


def test_a_public_class_has_its_name_alone() -> None:
    where: dict[str, list[str]] = {}
    for path in _files():
        for node in _parsed(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where.setdefault(node.name, []).append(_module(path))
    assert {name: found for name, found in where.items() if len(found) > 1} == {}


def test_the_floor_plan_names_files_that_there_are() -> None:
    text = (ROOT.parent / "CONTRIBUTING.md").read_text()
    # Those of a row of the table are below its package: the next test has them.
    prose = "\n".join(line for line in text.splitlines() if _row(line) is None)
    named = set(re.findall(r"`([a-z_]+/[a-z_/]*(?:\.py|\.md)?)`", prose))
    assert len(named) > 40
    assert {one for one in named if not _is_there(one)} == set()


def test_the_floor_plan_has_every_package_where_it_is() -> None:
    """By its whole name: there are several of the same last name."""
    text = (ROOT.parent / "CONTRIBUTING.md").read_text()
    rows = dict(filter(None, map(_row, text.splitlines())))
    code = {name: _packages(name) for name in _packages("") if "/" not in name}
    assert rows == {**code, "manual": set()}


def _row(line: str) -> tuple[str, set[str]] | None:
    """A row of the table of packages: a package, and those below it."""
    match = re.fullmatch(r"\| `([a-z_]+)/` \|[^|]*\|([^|]*)\|", line)
    return (match[1], set(re.findall(r"`([a-z_/]+)/`", match[2]))) if match else None


def _packages(below: str) -> set[str]:
    """The packages below one, with the names of those between."""
    root = ROOT / below
    return {found.parent.relative_to(root).as_posix() for found in root.rglob("*/__init__.py")}


def _is_there(name: str) -> bool:
    return (ROOT / name).exists() or (ROOT.parent / name).exists()


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported_modules(path: Path, modules: dict[str, Path]) -> set[str]:
    found: set[str] = set()
    for node in _nodes_that_run(_parsed(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            inner = {f"{node.module}.{alias.name}" for alias in node.names} & modules.keys()
            found |= inner if len(inner) == len(node.names) else {node.module, *inner}
    return found & modules.keys()


def _nodes_that_run(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        yield node
        if not (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            yield from _nodes_that_run(node)
