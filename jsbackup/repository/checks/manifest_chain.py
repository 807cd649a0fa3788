"""Find backups that were removed, replaced or slipped in, which signatures alone do not show.

A signed manifest cannot be altered, moved to another id or made up; but it can be deleted. Three things record that it
existed: the newest catalog, which is signed, names every backup with the SHA-256 of its manifest; each manifest names
the newest one at the time of its commit, with its SHA-256; and an object marks each backup that no other follows yet
(`witness_key`). (Without signatures all three exist too, and the witness says the SHA-256 of the manifest. They reveal
mistakes of people and of tools that move files, and prove to `repair` which copy of a manifest is the right one.) So

- every backup that the catalog names has to exist, unchanged. A forgotten backup is not reported, because `forget`
  first writes a catalog without it.
- every backup that the catalog does not cover has to follow one that exists, unchanged, or one that is not newer than
  the catalog's `head`, which was forgotten. A backup that does not is the only record of the lost one, so no catalog
  ever covers it.
- every backup that has such an object has to exist, or to be no newer than that `head`. If the object says a SHA-256,
  and the catalog does not cover the backup, it has to be that of the manifest.

This does not find the removal of the newest backups together with everything that records them: what is left is an
earlier state of the repository. `expect` checks for a backup whose id the user knows, and `status` reports that the
newest one is old.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from jsbackup.errors import IntegrityError
from jsbackup.repository import layout
from jsbackup.repository.catalog import Catalog, CatalogEntry

__all__ = ["Evidence", "Gap", "check_chain", "check_links", "how_to_repair", "refuse_gaps"]

# Keeps the hint short: with more losses the command has to be run again.
_MOST_NAMED = 20


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was found, by backup id. Damaged manifests are in neither mapping; they are reported elsewhere.

    `present` manifests were read, or have at least the size that the catalog names. `witnessed` are the backups for
    which a witness object exists, `witnesses` has what it says, if it says anything: the SHA-256 of the manifest.
    `warnings` say which catalogs could not be used.
    """

    present: Mapping[str, CatalogEntry]
    damaged: frozenset[str] = frozenset()
    catalog: Catalog | None = None
    warnings: tuple[str, ...] = ()
    witnessed: frozenset[str] = frozenset()
    witnesses: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Gap:
    """A problem with `backup`, whose manifest is, or was, the document `key`. Both are empty for a problem with a
    catalog. `sha256` is that of the right manifest, "" where it is not known.
    """

    backup: str
    key: str
    problem: str
    sha256: str = ""


def check_chain(evidence: Evidence, expect: str | None = None) -> list[Gap]:
    """Return everything that is wrong, in the order of ids. `expect` is the id of a backup that must exist."""
    gaps = {gap.backup: gap for gap in (*_by_chain(evidence), *_by_catalog(evidence))}
    if expect is not None and expect not in evidence.present and expect not in evidence.damaged:
        gaps.setdefault(expect, Gap(expect, layout.manifest_key(expect), "it was expected and is missing"))
    missing = [gaps[backup] for backup in sorted(gaps)]
    return [Gap("", "", warning) for warning in evidence.warnings] + missing


def check_links(evidence: Evidence) -> list[Gap]:
    """Return what is wrong with the predecessors of the backups that the catalog does not cover, in the order of
    ids.
    """
    return sorted(_by_chain(evidence), key=lambda gap: gap.backup)


def how_to_repair(backups: str) -> str:
    """Return a hint on what to do after a manifest was removed or replaced. `backups` are ids."""
    return (
        "Put its manifest back with 'jsbackup repair --from COPY'. Only if no copy has it, remove the backup with "
        f"'jsbackup forget {backups}'."
    )


def refuse_gaps(gaps: Sequence[Gap]) -> IntegrityError:
    """Return the error that commands raise, instead of deleting data or evidence, if backups were removed or
    replaced.
    """
    first, named = gaps[0], " ".join(gap.backup for gap in gaps[:_MOST_NAMED])
    more = f" ({len(gaps)} such backups)" if len(gaps) > 1 else ""
    return IntegrityError(
        f"backup {first.backup}: {first.problem}{more}",
        hint=f"Nothing was deleted. {how_to_repair(named)}",
    )


def _by_catalog(evidence: Evidence) -> Iterator[Gap]:
    catalog = evidence.catalog
    for entry in catalog.entries if catalog else ():
        present = evidence.present.get(entry.id)
        if present is None and entry.id not in evidence.damaged:
            yield _gap(entry.id, "it was removed, but not by jsbackup: the catalog of backups names it", entry.sha256)
        elif present is not None and present.sha256 != entry.sha256:
            problem = "its manifest was replaced: it is not the one that the catalog of backups names"
            yield _gap(entry.id, problem, entry.sha256)


def _by_chain(evidence: Evidence) -> Iterator[Gap]:
    catalog = evidence.catalog
    covered = {entry.id for entry in catalog.entries} if catalog else set()
    head = catalog.head if catalog else None
    for backup in evidence.witnessed - evidence.present.keys() - evidence.damaged - covered:
        if head is None or backup > head:
            problem = "it was removed, but not by jsbackup: it was noted when it was made"
            yield _gap(backup, problem, evidence.witnesses.get(backup))
    for backup, sha256 in evidence.witnesses.items():
        read = evidence.present.get(backup)
        if read is not None and backup not in covered and read.sha256 != sha256:
            witness = layout.witness_key(backup)
            yield _gap(backup, f"its manifest was replaced, or {witness} is damaged, which names another one", sha256)
    for entry in evidence.present.values():
        previous = entry.previous
        if entry.id in covered or previous is None:
            continue
        present = evidence.present.get(previous)
        if present is not None:
            if entry.previous_sha256 not in (None, present.sha256):
                problem = f"its manifest was replaced: it is not the one that backup {entry.id} follows"
                yield _gap(previous, problem, entry.previous_sha256)
        elif previous not in evidence.damaged and (head is None or previous > head):
            problem = f"it was removed, but not by jsbackup: backup {entry.id} follows it"
            if evidence.warnings:
                problem = f"backup {entry.id} follows it, and a damaged catalog may have said that it was forgotten"
            yield _gap(previous, problem, entry.previous_sha256)


def _gap(backup: str, problem: str, sha256: str | None) -> Gap:
    return Gap(backup, layout.manifest_key(backup), problem, sha256 or "")
