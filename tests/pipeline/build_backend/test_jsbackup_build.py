"""An editable install has a path file: Spark looks for modules in the folders of the path."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[3]
LOOKUP = ROOT / "jsbackup" / "pipeline" / "lookup"

# With what setuptools would build in place of that: compiling the kernel takes a minute.
PROGRAM = """
import sys, zipfile
from pathlib import Path
import jsbackup_build
from setuptools import build_meta

def build(folder, settings=None, metadata=None):
    with zipfile.ZipFile(Path(folder) / "x.whl", "w") as wheel:
        wheel.writestr("finder.py", "")
        wheel.writestr("x.dist-info/RECORD", "finder.py,,\\nx.dist-info/RECORD,,\\n")
    return "x.whl"

build_meta.build_editable = build
print(jsbackup_build.build_editable(sys.argv[1]))
"""


def test_the_folder_where_spark_looks_is_on_the_path(tmp_path: Path) -> None:
    backend = str(ROOT / "jsbackup" / "pipeline" / "build_backend")
    line = [sys.executable, "-c", f"import sys; sys.path.insert(0, {backend!r}){PROGRAM}", str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert done.stdout == "x.whl\n"
    with zipfile.ZipFile(tmp_path / "x.whl") as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".pth"))
        content = wheel.read(name)
        lines = wheel.read("x.dist-info/RECORD").decode().splitlines()
    assert content.decode().splitlines() == [str(LOOKUP)]
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
    assert lines == [f"{name},sha256={digest},{len(content)}", "finder.py,,", "x.dist-info/RECORD,,"]
    assert (LOOKUP / "pyspark_jsbackup" / "__init__.py").is_file()
