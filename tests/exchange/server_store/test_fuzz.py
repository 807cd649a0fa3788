"""Any damage to any file of a store: never a crash, never a message that was not there, never a silent loss."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jsbackup.model import ConsumerState, Fidelity, SequencePair
from tests.exchange.server_store.made_up import MESSAGES, record_ends, write_stream
from tests.exchange.server_store.stores import Imported, doubtful_sequences, import_folder, lost_sequences, observed
from tests.formats.archives import CONSUMERS, as_stored

KEY = b"a key"
TRUTH = {one.sequence: observed(one) for one in as_stored(MESSAGES)}
ENDS = record_ends()
KINDS = {"plain": None, "encrypted": KEY}
SLOW = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module", params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(f"of-{request.param}") / "$G" / "streams"
    write_stream(path, key=KINDS[request.param])
    write_stream(path, "OTHER", MESSAGES[:5], key=KINDS[request.param])
    return path


def keys_of(store: Path) -> tuple[bytes, ...]:
    return (KEY,) if "encrypted" in str(store) else ()


def files_of(store: Path) -> list[Path]:
    return sorted(path for path in (store / "ORDERS").rglob("*") if path.is_file())


def check(imported: Imported, damaged: list[str]) -> None:
    """Compare what was imported with the truth."""
    if imported.failures:
        assert set(imported.failures) == {"ORDERS"}
        return
    stream, got = imported.stream("ORDERS"), imported.messages["ORDERS"]
    assert [one for sequence, one in got.items() if one != TRUTH.get(sequence)] == []
    lost = TRUTH.keys() - got.keys()
    open_ended = [span.first_seq for span in stream.lost.spans if span.last_seq is None]
    known = lost_sequences(stream) | doubtful_sequences(stream)
    if any("without index.db, nothing tells whether there were other blocks" in one for one in stream.warnings):
        open_ended.append(max(got, default=0) + 1)
    assert all(one in known or any(one >= first for first in open_ended) for one in lost)
    assert lost_sequences(stream) <= lost
    if lost:
        assert imported.partial
    other = imported.stream("OTHER")
    assert not other.warnings and len(imported.messages["OTHER"]) == 5
    found = {consumer.name: consumer for consumer in stream.consumers}
    for consumer in CONSUMERS:
        if consumer.name not in found:
            assert any(consumer.name in warning for warning in stream.warnings)
    assert all(any(name in warning for warning in stream.warnings) for name in damaged), stream.warnings


def test_the_stores_are_whole(store: Path) -> None:
    imported = import_folder(store.parent, keys_of(store))
    check(imported, [])
    assert not imported.partial and imported.messages["ORDERS"].keys() == TRUTH.keys()
    assert all(one.fidelity is Fidelity.EXACT for one in imported.stream("ORDERS").consumers)
    assert len(list((store / "ORDERS" / "msgs").glob("*.blk"))) > 3


@pytest.mark.by_turns
@pytest.mark.slow
@SLOW
@given(st.data())
def test_any_byte_of_any_file(store: Path, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(files_of(store)))
    whole = path.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    path.write_bytes(whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :])
    try:
        imported = import_folder(store.parent, keys_of(store))
    finally:
        path.write_bytes(whole)
    # Nothing proves the state of a consumer in plain text.
    silent = path.name == "o.dat" and not keys_of(store)
    name = path.name if path.name != "meta.inf" else "meta."
    check(imported, [] if silent else [name])
    assert imported.partial or silent


@pytest.mark.by_turns
@pytest.mark.slow
@SLOW
@given(st.data())
def test_several_files_cut_overwritten_or_gone(store: Path, data: st.DataObject) -> None:
    damage_and_check(store, random.Random(data.draw(st.integers(0, 1 << 30))))


def damage_and_check(store: Path, some: random.Random) -> None:
    before = {path: path.read_bytes() for path in files_of(store)}
    touched = some.sample(sorted(before), some.randrange(1, 5))
    for path in touched:
        whole = before[path]
        match some.randrange(4):
            case 0:
                path.unlink()
            case 1:
                keep = some.randrange(len(whole))
                # Nothing but index.db tells of a block that ends between two records.
                path.write_bytes(whole[: keep - ((path.name, keep) in ENDS)])
            case 2:
                at = some.randrange(len(whole))
                path.write_bytes(whole[:at] + some.randbytes(some.randrange(1, 300)) + whole[at + 300 :])
            case 3:
                path.write_bytes(before[some.choice(sorted(before))])
    try:
        imported = import_folder(store.parent, keys_of(store))
    finally:
        for path, whole in before.items():
            path.write_bytes(whole)
    check(imported, [])


def test_folders_that_are_gone_cost_what_was_in_them(store: Path, tmp_path: Path) -> None:
    for folder in ("msgs", "obs", "obs/pull"):
        copy = tmp_path / folder / "$G" / "streams"
        shutil.copytree(store, copy)
        shutil.rmtree(copy / "ORDERS" / folder)
        imported = import_folder(copy.parent, keys_of(store))
        stream = imported.stream("ORDERS")
        if folder == "msgs":
            assert not imported.messages["ORDERS"] and imported.partial
            assert any("msgs" in warning for warning in stream.warnings)
            assert any(span.last_seq is None for span in stream.lost.spans)
        else:  # consumers may have been deleted
            assert imported.messages["ORDERS"].keys() == TRUTH.keys()
            assert len(stream.consumers) == (0 if folder == "obs" else 1)


def test_consumers_tell_that_the_last_block_is_missing(store: Path, tmp_path: Path) -> None:
    last = MESSAGES[-1].sequence
    state = ConsumerState(SequencePair(60, last), SequencePair(60, last))
    streams = tmp_path / "$G" / "streams"
    path = write_stream(
        streams, key=keys_of(store)[0] if keys_of(store) else None, consumers=[replace(CONSUMERS[0], state=state)]
    )
    (path / "msgs" / "index.db").unlink()
    newest = max((path / "msgs").glob("*.blk"), key=lambda one: int(one.stem))
    assert not import_folder(streams, keys_of(store), account="$G").stream("ORDERS").lost
    newest.unlink()
    imported = import_folder(streams, keys_of(store), account="$G")
    (span,) = imported.stream("ORDERS").lost.spans
    assert (span.first_seq, span.last_seq) == (max(imported.messages["ORDERS"]) + 1, None)
    assert f"consumer pull had got messages up to sequence {last}" in span.cause
