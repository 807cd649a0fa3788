"""Every file of a stream's store, damaged in every way, for each version of the server and kind of store.

What the server held is told by the witness. A damaged copy has to give back every message whose record was not touched,
no other one, and a report that says exactly what is lost.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jsbackup.model import Fidelity
from tests.exchange.server_store.stores import (
    Imported,
    doubtful_sequences,
    fingerprint,
    import_folder,
    lost_sequences,
    records_in,
    subjects_of,
)
from tests.harness.oracle import ObservedStream
from tests.harness.server_stores import STORES, STORES_AT_ENDS, Damage, MadeStore, applied, damages, make_store

pytestmark = [pytest.mark.nats, pytest.mark.timeout(900)]

STREAMS = ("ORDERS", "KV_settings")


def _params(stores: Iterable[tuple[str, str]]) -> list[Any]:
    return [
        pytest.param((version, kind), id=f"{version}-{kind}", marks=pytest.mark.xdist_group(f"store-{version}-{kind}"))
        for version, kind in stores
    ]


# For files whose form no server between them changed.
at_ends = pytest.mark.parametrize("made", _params(STORES_AT_ENDS), indirect=True)


@pytest.fixture(scope="module", params=_params(STORES))
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MadeStore]:
    version, kind = request.param
    yield make_store(version, kind, tmp_path_factory.mktemp("store"))


@pytest.fixture
def copy(made: MadeStore, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made.streams, tmp_path / "$G" / "streams"))


def _block_files(path: Path) -> list[str]:
    return sorted((f"msgs/{file.name}" for file in (path / "msgs").glob("*.blk")), key=lambda name: int(name[5:-4]))


def _check(made: MadeStore, imported: Imported, name: str, *, index: bool = True, end: bool = True) -> set[int]:
    """Compare a stream with what the server held; return what is lost.

    `index`: the store has a good index; `end`: its last block has its end, so that it is as new as the blocks.
    """
    held, stream = made.held[name], imported.stream(name)
    truth = {one.sequence: one for one in held.messages}
    got = imported.messages[name]
    assert all(truth.get(sequence) == message for sequence, message in got.items())
    lost = truth.keys() - got.keys()
    if index and end:
        assert lost_sequences(stream) == lost
        assert dict(stream.lost.subjects) == subjects_of(held, lost)
    elif index:
        assert lost_sequences(stream) | doubtful_sequences(stream) == lost
        assert any(span.last_seq is None for span in stream.lost.spans) or not lost
    else:
        open_ended = [span.first_seq for span in stream.lost.spans if span.last_seq is None]
        known = lost_sequences(stream) | doubtful_sequences(stream)
        assert all(one in known or any(one >= first for first in open_ended) for one in lost)
        assert lost_sequences(stream) <= lost
    return lost


def _imports(
    made: MadeStore, copy: Path, name: str, path: Path, seed: int = 1, **options: Any
) -> Iterator[tuple[Damage, Imported]]:
    """Damage a file of a stream in each way, and import it. The other streams are whole.

    Two of three times they are elsewhere meanwhile: streams are imported one by one.
    """
    others = [one for one in STREAMS if one != name]
    elsewhere = copy.parents[1] / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    for number, damage in enumerate(damages(path.read_bytes(), seed)):
        restore = applied(path, damage)
        together = number % 3 == 0
        for one in others:
            if not together:
                (copy / one).rename(elsewhere / one)
        imported = import_folder(copy.parent, made.keys, **options)
        for one in others:
            if together:
                assert not _check(made, imported, one)
                assert not imported.stream(one).warnings
            else:
                (elsewhere / one).rename(copy / one)
        restore()
        yield damage, imported


@pytest.mark.by_turns
def test_an_undamaged_store_comes_back_as_it_was(made: MadeStore) -> None:
    before = fingerprint(made.directory)
    imported = import_folder(made.directory / "store", made.keys)
    assert fingerprint(made.directory) == before
    assert not imported.partial and not imported.failures
    for name in STREAMS:
        assert not _check(made, imported, name)
        stream, held = imported.stream(name), made.held[name]
        assert not stream.warnings
        assert stream.created == held.created
        assert {key: stream.config[key] for key in held.config if key != "metadata"} == {
            key: value for key, value in held.config.items() if key != "metadata"
        }
        assert (stream.state.messages, stream.state.bytes) == (held.state["messages"], held.state["bytes"])
        assert (stream.state.first_seq, stream.state.last_seq) == (held.state["first_seq"], held.state["last_seq"])
        assert [one.name for one in stream.consumers] == sorted(held.consumers)
    worker = next(one for one in imported.stream("ORDERS").consumers if one.name == "worker")
    info = made.held["ORDERS"].consumers["worker"]
    assert worker.state is not None and worker.fidelity is Fidelity.EXACT
    assert worker.state.delivered.stream == info["delivered"]["stream_seq"]
    assert worker.state.ack_floor.stream == info["ack_floor"]["stream_seq"]
    assert len(worker.state.pending) == info["num_ack_pending"] > 0


@pytest.mark.by_turns
@at_ends
@pytest.mark.parametrize("name", STREAMS)
def test_a_damaged_block_costs_no_more_than_its_damaged_records(made: MadeStore, copy: Path, name: str) -> None:
    files = _block_files(copy / name)
    assert len(files) > 2
    for seed, file in enumerate(files):
        path = copy / name / file
        number = int(path.name[:-4])
        records = records_in(copy / name, number, made.keys)
        whole = path.read_bytes()
        for damage, imported in _imports(made, copy, name, path, seed):
            end = file != files[-1] or damage.lost.stop <= len(whole) - 8
            lost = _check(made, imported, name, end=end)
            _assert_only_touched(damage, records, lost, made.held[name])
            stream = imported.stream(name)
            assert imported.partial, (file, damage.name)
            assert any(file in warning for warning in stream.warnings), (file, damage.name, stream.warnings)


def _assert_only_touched(
    damage: Damage, records: list[tuple[int, int, int]] | None, lost: set[int], held: ObservedStream
) -> None:
    if records is None:
        return
    held_sequences = {one.sequence for one in held.messages}
    touched = {sequence for start, stop, sequence in records if start < damage.lost.stop and stop > damage.lost.start}
    assert lost == touched & held_sequences, damage.name


@pytest.mark.by_turns
@at_ends
@pytest.mark.parametrize("name", STREAMS)
def test_a_damaged_key_of_a_block_costs_that_block(made: MadeStore, copy: Path, name: str) -> None:
    if not made.keys:
        assert not list(copy.rglob("*.key"))
        return
    for seed, file in enumerate(_block_files(copy / name)):
        path = copy / name / file.replace(".blk", ".key")
        held_in_it = _held_in(made, copy / name, int(path.name[:-4]))
        for _, imported in _imports(made, copy, name, path, seed):
            lost = _check(made, imported, name, end=file != _block_files(copy / name)[-1])
            assert lost == held_in_it or held_in_it is None
            assert imported.partial
            assert any(f"msgs/{path.name}" in warning for warning in imported.stream(name).warnings)


def _held_in(made: MadeStore, path: Path, number: int) -> set[int] | None:
    records = records_in(path, number, made.keys)
    held = {one.sequence for one in made.held[path.name].messages}
    return None if records is None else held & {sequence for _, _, sequence in records}


@pytest.mark.by_turns
@pytest.mark.parametrize("name", STREAMS)
def test_a_damaged_index_costs_no_message_and_brings_none_back(made: MadeStore, copy: Path, name: str) -> None:
    path = copy / name / "msgs" / "index.db"
    for damage, imported in _imports(made, copy, name, path):
        assert not _check(made, imported, name, index=False)
        assert imported.partial
        assert any("msgs/index.db" in warning for warning in imported.stream(name).warnings), damage.name


@pytest.mark.by_turns
@at_ends
@pytest.mark.parametrize("file", ["meta.inf", "meta.sum"])
@pytest.mark.parametrize("name", STREAMS)
def test_a_damaged_configuration_costs_no_message(made: MadeStore, copy: Path, name: str, file: str) -> None:
    path = copy / name / file
    for damage, imported in _imports(made, copy, name, path):
        assert not _check(made, imported, name)
        stream, held = imported.stream(name), made.held[name]
        assert imported.partial
        assert any(file in warning or "meta.sum" in warning for warning in stream.warnings), damage.name
        if not any("configuration" in warning for warning in stream.warnings):
            assert stream.created == held.created and stream.config["subjects"] == held.config["subjects"]
        elif file == "meta.sum":
            assert stream.config["subjects"] == held.config["subjects"]
        elif any("lost" in warning for warning in stream.warnings):
            subjects = {one.subject.decode() for one in held.messages}
            assert stream.config["subjects"] == (["$KV.settings.>"] if name.startswith("KV") else sorted(subjects))


@at_ends
@pytest.mark.parametrize("name", STREAMS)
def test_a_damaged_key_of_a_stream_costs_its_configuration_and_index(made: MadeStore, copy: Path, name: str) -> None:
    if not made.keys:
        assert not list(copy.rglob("*.key"))
        return
    path = copy / name / "meta.key"
    for _, imported in _imports(made, copy, name, path, configs={name: made.held[name].config}):
        assert not _check(made, imported, name, index=False)
        stream = imported.stream(name)
        assert imported.partial and stream.config == made.held[name].config
        assert any("meta.key" in warning for warning in stream.warnings)
        assert "its configuration is lost; this one is from --stream-config" in stream.warnings


@pytest.mark.by_turns
@at_ends
@pytest.mark.parametrize("file", ["meta.inf", "meta.sum", "meta.key", "o.dat"])
def test_a_damaged_consumer_costs_no_message_and_no_other_one(made: MadeStore, copy: Path, file: str) -> None:
    path = copy / "ORDERS" / "obs" / "worker" / file
    if file == "meta.key" and not made.keys:
        assert not path.exists()
        return
    whole = {one.name: one for one in import_folder(copy.parent, made.keys).stream("ORDERS").consumers}
    for _, imported in _imports(made, copy, "ORDERS", path):
        assert not _check(made, imported, "ORDERS")
        stream = imported.stream("ORDERS")
        found = {one.name: one for one in stream.consumers}
        assert found["unused"] == whole["unused"]
        reported = any(f"obs/worker/{file}" in warning for warning in stream.warnings)
        if made.keys or file != "o.dat":
            assert imported.partial and (reported or any("obs/worker/meta.sum" in one for one in stream.warnings))
        if "worker" not in found:
            assert any("consumer worker is lost" in warning for warning in stream.warnings)
        elif found["worker"].fidelity is Fidelity.CONFIG_ONLY:
            assert reported and "o.dat" in found["worker"].reason
        elif made.keys:
            assert found["worker"].state == whole["worker"].state


@pytest.mark.by_turns
def test_several_damages_at_once_are_all_told(made: MadeStore, copy: Path) -> None:
    some = random.Random(11)
    for _ in range(12):
        files = some.sample(_block_files(copy / "ORDERS"), 2)
        touched: set[int] = set()
        restores = []
        exact = True
        for file in files:
            path = copy / "ORDERS" / file
            records = records_in(copy / "ORDERS", int(path.name[:-4]), made.keys)
            damage = some.choice([*damages(path.read_bytes(), some.randrange(1000))])
            exact = exact and records is not None
            touched |= {
                one for start, stop, one in records or () if start < damage.lost.stop and stop > damage.lost.start
            }
            restores.append(applied(path, damage))
        imported = import_folder(copy.parent, made.keys)
        for restore in restores:
            restore()
        stream, held = imported.stream("ORDERS"), {one.sequence: one for one in made.held["ORDERS"].messages}
        got = imported.messages["ORDERS"]
        assert all(held.get(sequence) == message for sequence, message in got.items())
        lost = held.keys() - got.keys()
        assert lost_sequences(stream) | doubtful_sequences(stream) == lost
        named = [any(file in warning for warning in stream.warnings) for file in files]
        assert imported.partial and any(named)
        if exact:
            assert all(named)
            assert lost == touched & held.keys()
