"""This tree and an older one in turn, on the same server and data: what has become cheaper, and what dearer.

`./scripts/bench against REV` takes the files of REV from git, below `.cache/bench`. It has a virtual environment of its
own, unless what is installed is the same. Each command runs in pairs, and which tree goes first alternates, since a
busy machine drifts. A ratio is this tree's figure divided by the other one's, and the median of all pairs is shown.
Processor time (of the command, in user and system) and peak memory tell; the time on the clock is for information. Each
tree has a repository of its own: an older one may not read what a newer one writes.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scripts.bench_cases import LONG, SHORT, Bench, Sizes, remove, run, size_of
from scripts.bench_rows import Run
from tests.harness.servers import BUNDLED, NatsServer

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".cache" / "bench"
PACKAGE = "jsbackup"


@dataclass(frozen=True, slots=True)
class Tree:
    """A checkout, the interpreter that runs it, and what it measures in."""

    name: str
    root: Path
    python: str

    def run(self, *words: str | Path) -> Run:
        # -P: the folder that it runs in is not searched for the package.
        command = [self.python, "-P", "-m", PACKAGE, *words, "--no-progress"]
        return run(command, PYTHONPATH=str(self.root))

    @property
    def version(self) -> str:
        """What `--version` says, with the kind of the kernel. RuntimeError if another tree would run."""
        asked = f"import {PACKAGE}; print({PACKAGE}.__file__)"
        found = run([self.python, "-P", "-c", asked], PYTHONPATH=str(self.root)).out.strip()
        if Path(found) != self.root / PACKAGE / "__init__.py":
            raise RuntimeError(f"{self.python} runs {found}, not {self.root}")
        return run([self.python, "-P", "-m", PACKAGE, "--version"], PYTHONPATH=str(self.root)).out.strip()


@dataclass(slots=True)
class Compared:
    """The runs of one command, in pairs: of the older tree, and of this one; and the bytes that both have stored."""

    case: str
    old: list[Run] = field(default_factory=list)
    new: list[Run] = field(default_factory=list)
    stored: list[tuple[int, int]] = field(default_factory=list)

    def ratio(self, figure: Callable[[Run], float]) -> float:
        """The median of this tree's figure divided by the other's, pair by pair."""
        pairs = zip(self.old, self.new, strict=True)
        return round(statistics.median(figure(new) / max(figure(old), 1e-9) for old, new in pairs), 3)

    def document(self) -> dict[str, Any]:
        sides = {"old": self.old, "new": self.new}
        return {
            "case": self.case,
            "processor_ratio": self.ratio(lambda one: one.busy_seconds),
            "peak_ratio": self.ratio(lambda one: one.peak_bytes),
            "stored_ratio": round(statistics.median(new / old for old, new in self.stored), 3) if self.stored else None,
            "seconds_ratio": self.ratio(lambda one: one.seconds),
            **{name: _medians(runs) for name, runs in sides.items()},
        }


def _medians(runs: Sequence[Run]) -> dict[str, Any]:
    return {
        "processor_seconds": round(statistics.median(one.busy_seconds for one in runs), 3),
        "peak_bytes": round(statistics.median(one.peak_bytes for one in runs)),
        "seconds": round(statistics.median(one.seconds for one in runs), 3),
    }


# --- the other tree ---


def checked_out(rev: str) -> Tree:
    """The tree of a revision, ready to run."""
    commit = _git("rev-parse", "--verify", f"{rev}^{{commit}}").decode().strip()
    root = CACHE / commit[:12]
    if not (root / PACKAGE).is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        making = Path(tempfile.mkdtemp(prefix="making-", dir=CACHE))
        subprocess.run(["tar", "-x", "-C", making], input=_git("archive", commit), check=True)
        making.rename(root)
    return Tree(f"{rev} ({commit[:12]})", root, _python_for(root))


def _git(*words: str) -> bytes:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"git {' '.join(words)}: {done.stderr.decode().strip()}")
    return done.stdout


def _python_for(root: Path) -> str:
    """This interpreter if it has what that tree installs, else one of that tree's own environment."""
    compiled = [path.relative_to(ROOT) for path in (ROOT / PACKAGE).rglob("*.p[yx][xi]") if path.suffix != ".pyi"]
    installed = [Path("pyproject.toml"), *compiled]
    if all((root / one).exists() and filecmp.cmp(ROOT / one, root / one, shallow=False) for one in installed):
        for kernel in (ROOT / PACKAGE).rglob("*.so"):
            shutil.copy(kernel, root / kernel.relative_to(ROOT))
        return sys.executable
    # With the libraries that this one has: with numpy beside it, pyarrow takes 0.06 s longer to import.
    done = subprocess.run([root / "scripts" / "venv", "dev"], cwd=root, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


# --- the cases ---


class Against:
    """The cases. Each yields what it has compared."""

    def __init__(self, old: Tree, new: Tree, sizes: Sizes, folder: Path) -> None:
        self.trees = (old, new)
        self.sizes = sizes
        self.bench = Bench(sizes, folder)
        self.folder = folder

    def repository(self, tree: Tree) -> Path:
        return self.folder / f"repo-{self.trees.index(tree)}"

    def each(self, compared: Compared, command: Callable[[Tree], Run], pair: int) -> None:
        """Runs a command of both trees; the older one goes first in every second pair."""
        for tree in self.trees if pair % 2 == 0 else self.trees[::-1]:
            (compared.old if tree is self.trees[0] else compared.new).append(command(tree))

    def startup(self) -> Iterator[Compared]:
        compared = Compared("--version")
        for pair in range(3 * self.sizes.pairs):
            self.each(compared, lambda tree: tree.run("--version"), pair)
        yield compared

    def stream(self) -> Iterator[Compared]:
        """A stream: backed up, grown by a hundredth, looked at, verified and restored."""
        first, later = Compared("backup"), Compared("backup after 1 % more")
        listing, showing = Compared("list"), Compared("show latest")
        verify, restore = Compared("verify --level data"), Compared("restore, proved")
        with NatsServer(BUNDLED) as server, NatsServer(BUNDLED) as target:
            at = self.bench.fill_stream(server.url, "S", 4096, self.sizes.stream_bytes)
            for pair in range(self.sizes.pairs):
                for tree in self.trees:
                    shutil.rmtree(self.repository(tree), ignore_errors=True)
                self.each(first, self._backup(server.url), pair)
                before = [size_of(self.repository(tree)) for tree in self.trees]
                first.stored.append((before[0], before[1]))
                at = self.bench.fill_stream(server.url, "S", 4096, self.sizes.stream_bytes // 100, at)
                self.each(later, self._backup(server.url), pair)
                added = [size_of(self.repository(tree)) - size for tree, size in zip(self.trees, before, strict=True)]
                later.stored.append((added[0], added[1]))
                for compared, words in (
                    (listing, ["list"]),
                    (showing, ["show", "latest"]),
                    (verify, ["verify", "--level", "data"]),
                ):
                    self.each(compared, self._in_repository(*words), pair)
                self.each(restore, self._restore(target.url), pair)
        yield from (first, later, listing, showing, verify, restore)

    def _backup(self, url: str) -> Callable[[Tree], Run]:
        return self._in_repository("backup", "S", "-s", url)

    def _in_repository(self, *words: str) -> Callable[[Tree], Run]:
        return lambda tree: tree.run(*words, "-r", self.repository(tree))

    def _restore(self, url: str) -> Callable[[Tree], Run]:
        def restore(tree: Tree) -> Run:
            done = tree.run("restore", "latest", "-s", url, "-r", self.repository(tree))
            remove(url, ["S"])
            return done

        return restore


CASES = {"startup": Against.startup, "stream": Against.stream}


# --- what it prints ---

HEAD = ("COMMAND", "CPU", "MEMORY", "STORED", "TIME", "CPU s", "BEFORE", "MiB", "BEFORE")
_WIDTHS = (-24, 7, 7, 7, 7, 8, 8, 6, 6)


def line(cells: Sequence[str]) -> str:
    aligned = (
        f"{cell:<{-width}}" if width < 0 else f"{cell:>{width}}" for cell, width in zip(cells, _WIDTHS, strict=True)
    )
    return "  ".join(aligned)


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    ratios = [row[f"{name}_ratio"] for name in ("processor", "peak", "stored", "seconds")]
    seconds = [f"{row[side]['processor_seconds']:.2f}" for side in ("new", "old")]
    memory = [f"{row[side]['peak_bytes'] / 2**20:.0f}" for side in ("new", "old")]
    return (row["case"], *("" if ratio is None else f"{ratio:.3f}" for ratio in ratios), *seconds, *memory)


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench against", description=__doc__)
    parser.add_argument("rev", help="the revision to compare with: a commit, a branch, a tag")
    parser.add_argument("cases", nargs="*", choices=[[], *CASES], help="which of them; all without")
    parser.add_argument("--short", action="store_true", help="small streams")
    parser.add_argument("--pairs", type=int, help="runs of each tree")
    parser.add_argument("--stream-bytes", type=int, help="size of the stream")
    parser.add_argument("--most", type=float, help="exit with 1 if processor time or memory of a command is above")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    asked = parser.parse_args()
    sizes = SHORT if asked.short else LONG
    sizes = replace(sizes, stream_bytes=asked.stream_bytes or sizes.stream_bytes, pairs=asked.pairs or sizes.pairs)
    old, new = checked_out(asked.rev), Tree("this tree", ROOT, sys.executable)
    versions = old.version, new.version
    if "compiled" in versions[0] and "compiled" not in versions[1]:
        raise RuntimeError(f"the kernel of this tree is not compiled: {versions[1]}")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="jsbackup-against-") as folder:
        against = Against(old, new, sizes, Path(folder))
        if not asked.json:
            print(f"{versions[1]} against {old.name}, {versions[0]}; {sizes.pairs} pairs\n{line(HEAD)}", flush=True)
        for name in asked.cases or CASES:
            for compared in CASES[name](against):
                rows.append(compared.document())
                if not asked.json:
                    print(line(cells(rows[-1])), flush=True)
    if asked.json:
        print(json.dumps({"old": [old.name, versions[0]], "new": [new.name, versions[1]], "rows": rows}, indent=2))
    dearer = [row["case"] for row in rows if asked.most and max(row["processor_ratio"], row["peak_ratio"]) > asked.most]
    if dearer:
        sys.exit(f"above {asked.most}: {', '.join(dearer)}")


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as error:
        sys.exit(f"error: {error}")
