"""The table of layers: what each package may import. A reader of this dict knows the direction of every arrow."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "jsbackup"

BASE = {"errors", "model", "times", "names", "config", "progress"}

# package or top module -> (packages of jsbackup it may import, third-party packages it may import)
LAYERS: dict[str, tuple[set[str], set[str]]] = {
    "errors": (set(), set()),
    "model": ({"errors"}, set()),
    "times": ({"errors"}, set()),
    "names": ({"errors"}, set()),
    "heap": (set(), set()),
    "compute": (set(), {"pyarrow"}),
    "progress": ({"errors", "model"}, set()),
    "config": ({"errors", "model", "times", "names"}, set()),
    "protocol": ({"errors", "model", "times", "names"}, set()),
    "formats": (
        {"errors", "model", "times", "names", "compute"},
        {"pyarrow", "zstandard", "cramjam", "google_crc32c", "typing_extensions"},
    ),
    "stores": ({"errors", "model"}, set()),
    "repository": (
        BASE | {"heap", "compute", "formats", "stores"},
        {"pyarrow", "zstandard"},
    ),
    "transforms": ({"errors", "model", "times", "names", "compute", "config"}, {"pyarrow"}),
    "exchange": ({"errors", "model", "times", "progress", "formats", "stores", "repository"}, {"pyarrow"}),
    "engine": (BASE | {"compute", "protocol", "formats", "stores", "repository", "transforms"}, {"pyarrow"}),
    "pipeline": (
        BASE | {"formats", "stores", "repository", "exchange", "engine", "transforms"},
        {"pyarrow", "pyspark", "py4j", "deltalake"},
    ),
    "cli": (
        BASE | {"heap", "protocol", "formats", "stores", "repository", "transforms", "exchange", "engine", "pipeline"},
        {"click", "tqdm"},
    ),
    "__main__": ({"cli"}, set()),
    "__init__": (BASE | {"engine", "repository", "stores"}, set()),
}

# Third-party imports that belong to one file alone, and files that may be imported from one place alone.
ONE_DOOR = {
    "nats": "engine/link.py",
    "nkeys": "engine/link.py",
    "cryptography": "repository/signing.py",
    "pyrage": "repository/age.py",
    "boto3": "stores/s3_client.py",
    "botocore": "stores/s3_client.py",
    "urllib3": "stores/s3_client.py",
}


def _files() -> list[Path]:
    return sorted(p for p in ROOT.rglob("*.py") if "__pycache__" not in p.parts)


def _imports(path: Path) -> set[str]:
    """Absolute module names that a file imports, wherever in the file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            if node.module == "jsbackup":
                found |= {f"jsbackup.{alias.name}" for alias in node.names}
            else:
                found.add(node.module)
    return found


def _layer(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def test_every_package_has_a_place_in_the_table() -> None:
    assert {_layer(path) for path in _files()} <= set(LAYERS)


@pytest.mark.parametrize("path", _files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_follow_the_table(path: Path) -> None:
    layer = _layer(path)
    inner, outer = LAYERS[layer]
    for name in sorted(_imports(path)):
        top, _, rest = name.partition(".")
        if top == "jsbackup":
            target = rest.split(".")[0]
            if target in ("", "__version__"):
                continue
            assert target == layer or target in inner, f"{layer} must not import {name}"
        elif top not in sys.stdlib_module_names:
            door = ONE_DOOR.get(top)
            if door is not None:
                assert path.relative_to(ROOT).as_posix() == door, f"{name} is imported in {door} only"
            else:
                assert top in outer, f"{layer} must not import {name}"


@pytest.mark.parametrize("path", _files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_only_the_engine_and_the_cli_are_asynchronous(path: Path) -> None:
    if _layer(path) not in ("engine", "cli"):
        assert "asyncio" not in _imports(path)


@pytest.mark.parametrize("path", _files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_the_environment_is_read_in_config_only(path: Path) -> None:
    if _layer(path) != "config":
        attributes = {n.attr for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Attribute)}
        assert not attributes & {"environ", "getenv"}
