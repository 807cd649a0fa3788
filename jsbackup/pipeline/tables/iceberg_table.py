"""An Iceberg table, committed by `pyiceberg` through a catalog: one that the user has, or one of SQLite beside the
tables.

    catalog.db                                         the catalog, in a folder
    ORDERS/data/[day=2026-11-26/]<first>-<last>-<backup>-<token>.parquet
    ORDERS/metadata/                                   of pyiceberg

The state of the table is in its properties, which a commit replaces together with adding files. Partitions are the day
of `time`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from jsbackup.errors import JsBackupError, StoreError, UnsupportedError, UsageError
from jsbackup.pipeline.session.repository_ref import RepositoryRef
from jsbackup.pipeline.tables.parquet_table import changed_meanwhile
from jsbackup.pipeline.tables.table_state import TableState
from jsbackup.pipeline.tables.target import CATALOG, location_of, refuse_others
from jsbackup.pipeline.tables.writing import TABLE_SCHEMA, WrittenFile
from jsbackup.repository.layout import encode_name
from jsbackup.stores.s3_client import s3_access

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table as OpenTable

__all__ = ["NAMESPACE", "PyIcebergTable", "iceberg_errors", "open_catalog", "require_pyiceberg"]

NAMESPACE = "jsbackup"
"""That of tables in a catalog, if none is given."""

_STATE = "jsbackup.export"
_PROPERTIES = {
    # Each commit would leave a list of files, and each list of lists name all of them: that grows with the square.
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
_MOST_SNAPSHOTS, _LEFT_SNAPSHOTS = 200, 100  # of a table in the catalog of ours


def require_pyiceberg() -> None:
    """Raise UnsupportedError if it is not installed."""
    if find_spec("pyiceberg") is None or find_spec("sqlalchemy") is None:
        raise UnsupportedError(
            "Iceberg tables take the package pyiceberg with SQLAlchemy, which is not installed",
            hint="Install it with `pip install 'jsbackup[iceberg]'`.",
        )


def open_catalog(place: RepositoryRef, given: str | None) -> tuple[Catalog, str]:
    """Open the catalog of tables at a place, and return it with the namespace of these. `given` is NAME or
    NAME/NAMESPACE of a catalog that pyiceberg is configured for, or the URI of an SQL catalog.

    Raises:
        UsageError: there is no such catalog, or one has to be given.
        StoreError: it cannot be opened.
    """
    from pyiceberg.catalog import load_catalog
    from pyiceberg.catalog.sql import SqlCatalog

    uri, namespace = given, NAMESPACE
    if given is None and place.folder is None:
        raise UsageError(
            "Iceberg tables in S3 take a catalog",
            hint="Name one of pyiceberg's configuration with --catalog NAME, or a file: --catalog sqlite:////PATH.db.",
        )
    with iceberg_errors("the catalog"):
        if given is not None and "://" not in given:
            name, _, after = given.partition("/")
            catalog, namespace = load_catalog(name), after or NAMESPACE
        else:
            uri = uri or f"sqlite:///{place.folder}/{CATALOG}"
            catalog = SqlCatalog(NAMESPACE, uri=uri, warehouse=location_of(place), **_file_properties(place))
        catalog.create_namespace_if_not_exists(namespace)
    return catalog, namespace


def _file_properties(place: RepositoryRef) -> dict[str, str]:
    """Return what pyiceberg takes to reach files at a place."""
    if place.folder is not None or not place.location.startswith("s3://"):
        return {}
    return {f"s3.{name.replace('_', '-')}": value for name, value in s3_access(place.s3).items()}


class PyIcebergTable:
    """The table of the stream called `name` in a catalog, at a place if it is new. `token` is random, in hex. `is_own`:
    the catalog is beside the tables.

    Raises:
        UsageError: something else has made what is there.
        FormatError, UnsupportedError: its state is damaged, or of another version.
        StoreError: it cannot be read.
    """

    joint = "/"

    def __init__(
        self, catalog: Catalog, place: RepositoryRef, name: str, token: str, *, namespace: str, is_own: bool
    ) -> None:
        from pyiceberg.exceptions import NoSuchTableError

        self.place, self.name = place, name
        self.folder, self.ending = f"{encode_name(name)}/data", f"-{token}.parquet"
        self.state: TableState | None = None
        self._catalog, self._is_own = catalog, is_own
        self._id = (namespace, encode_name(name))
        self._location = f"{location_of(place)}/{encode_name(name)}"
        self._table: OpenTable | None = None
        if marks := {"#", "?"} & set(self._location):
            raise UsageError(f"readers of Iceberg find no tables below a name with {min(marks)}", hint="Name another.")
        with self._errors(), suppress(NoSuchTableError):
            self._table = catalog.load_table(self._id)
        if self._table is None:
            own = re.compile(r"data/([^/]*=[^/]*/)?[^/]*-[0-9a-f]{8}\.parquet|metadata/.*")
            refuse_others(place.store(), encode_name(name), name, own)
            return
        text = self._table.properties.get(_STATE)
        if text is None:
            raise UsageError(
                f"the Iceberg table of stream {name} does not say which backups it has: something else has made it",
                hint="Export to another namespace, or folder.",
            )
        self.state = TableState.from_json(text, f"the state of the table of stream {name}")
        self._location = self._table.location().rstrip("/")
        if self._location != f"{location_of(place)}/{encode_name(name)}":
            self.place = replace(place, location=re.sub(r"^file:(//)?", "", re.sub("^s3[an]:", "s3:", self._location)))
            self.folder = "data"

    def commit(self, files: Sequence[WrittenFile], state: TableState, backup: str) -> None:
        from pyiceberg.transforms import DayTransform

        paths = [f"{self._location}/data/{file.path()}" for file in files]
        properties, summary = {_STATE: state.to_json()}, {"jsbackup.backup": backup}
        with self._errors():
            if self._table is None:
                made = {**_PROPERTIES, **properties}
                creation = self._catalog.create_table_transaction(
                    self._id, TABLE_SCHEMA, self._location, properties=made
                )
                if state.source.partition:
                    with creation.update_spec() as spec:
                        spec.add_field("time", DayTransform(), "time_day")
                creation.add_files(paths, summary, check_duplicate_files=False)
                self._table = creation.commit_transaction()
            else:
                # In this process only: a commit is not tried again beside one of another export, and snapshots that the
                # catalog has are left out. pyiceberg copies all metadata twenty times (Measured, 2,000 snapshots: a
                # commit took 4.4 s of a processor, and takes 0.4).
                metadata = self._table.metadata
                metadata.properties["commit.retry.num-retries"] = "0"
                metadata.snapshots[:] = [
                    snapshot for snapshot in metadata.snapshots if snapshot.snapshot_id == metadata.current_snapshot_id
                ]
                metadata.snapshot_log.clear()
                with self._table.transaction() as change:
                    change.set_properties(properties)
                    change.add_files(paths, summary, check_duplicate_files=False)
        self.state = state

    def finish(self) -> None:
        """Forget old snapshots in a catalog of ours, whose lists of files would grow with the square."""
        if self._table is None or not self._is_own or len(self._table.snapshots()) <= _MOST_SNAPSHOTS:
            return
        with self._errors():
            table, snapshots = self._table, sorted(self._table.snapshots(), key=lambda snapshot: snapshot.timestamp_ms)
            named = {ref.snapshot_id for ref in table.metadata.refs.values()}
            old = [snapshot for snapshot in snapshots[:-_LEFT_SNAPSHOTS] if snapshot.snapshot_id not in named]
            lists = {path for old_snapshot in old for path in _files_of(table, old_snapshot)}
            change = table.maintenance.expire_snapshots()
            for old_snapshot in old:
                change.by_id(old_snapshot.snapshot_id)
            change.commit()
            table.refresh()
            for path in lists.difference(*(_files_of(table, snapshot) for snapshot in table.snapshots())):
                table.io.delete(path)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError

        with iceberg_errors(f"the Iceberg table of stream {self.name}"):
            try:
                yield
            except (CommitFailedException, TableAlreadyExistsError) as error:
                raise changed_meanwhile(self.name) from error


def _files_of(table: OpenTable, snapshot: Any) -> set[str]:
    """Return the lists of files of a snapshot, and the list of these."""
    return {snapshot.manifest_list, *(manifest.manifest_path for manifest in snapshot.manifests(table.io))}


@contextmanager
def iceberg_errors(what: str) -> Iterator[None]:
    """Raise StoreError for errors of pyiceberg and of its catalogs; `what` begins it."""
    import pyarrow as pa
    from pyiceberg import exceptions
    from sqlalchemy.exc import SQLAlchemyError

    theirs = tuple(var for var in vars(exceptions).values() if isinstance(var, type) and issubclass(var, Exception))
    try:
        yield
    except JsBackupError:
        raise
    except exceptions.NoSuchTableError:
        raise
    except (*theirs, SQLAlchemyError, pa.ArrowException, OSError, ValueError) as error:
        raise StoreError(f"{what}: {' '.join(str(error).split())[:300]}") from error
