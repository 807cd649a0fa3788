"""A notebook as a data engineer would write it (`notebook_orders.py`), run by a kernel of Jupyter."""

from __future__ import annotations

import ast
import json
import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.harness.batches import Message
from tests.harness.commands import environment
from tests.harness.servers import missing
from tests.pipeline.places import keep
from tests.pipeline.quick_java import quick_java

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark-apart"), pytest.mark.timeout(300)]

NOTEBOOK = Path(__file__).with_name("notebook_orders.py")
WRONG = [b"not JSON", b'{"order": 9007199254740993.0}', b'{"amount": 0.125}']


def orders() -> list[Message]:
    found = [
        {"order": n, "amount": n + 0.25, "customer": f"customer {n % 4}", "lines": [{"sku": f"s{n % 2}", "n": n}]}
        for n in range(100)
    ]
    payloads = [*(json.dumps(one).encode() for one in found), *WRONG]
    return [Message(n, 10**18 + n, f"orders.{n % 3}", None, payload) for n, payload in enumerate(payloads, 1)]


def settings() -> list[Message]:
    payloads = [b'{"theme": "dark", "size": 12}', b"", b'{"theme": "light"}']
    return [Message(n, 10**18, f"$KV.settings.user{n}", None, payload) for n, payload in enumerate(payloads, 1)]


def outputs(cell: Any) -> str:
    """What a cell has printed and returned."""
    told = [
        one["text"] if "text" in one else one["data"]["text/plain"]
        for one in cell.outputs
        if one.get("name") != "stderr"
    ]
    return "".join(told)


def table(text: str) -> list[list[str]]:
    """The rows of a DataFrame that was shown."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]


def test_a_notebook_of_orders_shows_what_was_stored(tmp_path: Path) -> None:
    for name in ("nbclient", "ipykernel", "pyspark"):
        if find_spec(name) is None:
            missing(f"{name} is not installed: pip install 'jsbackup[dev]'")
    import nbformat
    from nbclient import NotebookClient

    keep(tmp_path, {"ORDERS": orders(), "KV_settings": settings()})
    (tmp_path / "repo").rename(tmp_path / "backups")
    texts = [text.strip() for text in re.split(r"^# %%(?! \[markdown\]).*\n", NOTEBOOK.read_text(), flags=re.MULTILINE)]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in texts[1:]])
    client = NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(tmp_path)}})
    home = {name: str(tmp_path / "jupyter") for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR")}
    quick = quick_java()
    path = os.pathsep.join([quick.pop("PYTHONPATH"), str(Path(__file__).parents[2])])
    client.execute(env=environment(**home, **quick, PYTHONPATH=path))

    counts, streams, customers, lines, kv, _ = map(outputs, notebook.cells)
    assert ast.literal_eval(counts) == {"KV_settings": 3, "ORDERS": 103}
    assert table(streams) == [["stream", "count"], ["KV_settings", "3"], ["ORDERS", "103"]]
    sums = [sum(n + 0.25 for n in range(100) if n % 4 == one) for one in (3, 2, 1)]
    assert table(customers)[1:] == [
        [f"customer {one}", "25", f"{amount:.2f}"] for one, amount in zip((3, 2, 1), sums, strict=True)
    ]
    assert sorted(table(lines)[1:]) == [["s0", str(sum(range(0, 100, 2)))], ["s1", str(sum(range(1, 100, 2)))]]
    assert table(kv)[1:] == [[str(n), f"$KV.settings.user{n}"] for n in (1, 2, 3)]
