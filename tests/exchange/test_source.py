"""What a folder holds is found out by looking into it; what it does not hold is said in one sentence."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from jsbackup.errors import FormatError, JsBackupError, UsageError
from jsbackup.exchange.importing import ImportSource, SourceKind
from jsbackup.stores.local import LocalStore
from tests.exchange.folders import V1, V2, describe, state_with, stream_folder
from tests.formats.archives import state_of
from tests.harness.backups import make_repository
from tests.harness.batches import some_messages

MESSAGES = some_messages(5, 10)


def look(path: Path) -> tuple[SourceKind, list[str], dict[str, JsBackupError]]:
    with ImportSource.open(path) as source:
        names = [stream.meta.name for stream in source.streams] + [config.name for config in source.configs]
        return source.kind, names, {failure.name: failure.error for failure in source.failures}


@pytest.mark.parametrize("file", [V1, V2])
@pytest.mark.parametrize("form", ["v1", "v2"])
def test_a_streams_folder_is_one_whatever_the_archive_is_called(tmp_path: Path, file: str, form: str) -> None:
    stream_folder(tmp_path, MESSAGES, file=file, form=form)
    assert look(tmp_path) == (SourceKind.STREAM, ["ORDERS"], {})


def test_an_account_is_a_folder_of_streams_whose_folders_may_be_called_anything(tmp_path: Path) -> None:
    stream_folder(tmp_path / "streams", MESSAGES, name="streams")
    stream_folder(tmp_path / "somewhere", MESSAGES, name="größe", form="v2", file=V2)
    (tmp_path / "README").write_text("backed up by cron")
    (tmp_path / ".snapshot").mkdir()
    assert look(tmp_path) == (SourceKind.ACCOUNT, ["größe", "streams"], {})


def test_configs_are_told_from_an_account_with_a_stream_called_streams(tmp_path: Path) -> None:
    (tmp_path / "streams").mkdir()
    (tmp_path / "streams" / "backup.json").write_text('{"name":"backup"}')
    assert look(tmp_path) == (SourceKind.CONFIGS, ["backup"], {})
    describe(tmp_path / "streams", {"name": "streams"}, {})
    with pytest.raises(UsageError, match=r"streams/backup.json has no name"):  # its archive is not there
        look(tmp_path)


def test_in_an_account_the_good_streams_are_found_beside_the_bad(tmp_path: Path) -> None:
    stream_folder(tmp_path / "GOOD", MESSAGES, name="GOOD")
    stream_folder(tmp_path / "BOTH", MESSAGES, name="BOTH")
    (tmp_path / "BOTH" / V2).write_bytes(b"")
    stream_folder(tmp_path / "INTERRUPTED", MESSAGES)
    (tmp_path / "INTERRUPTED" / "backup.json").write_bytes(b"")
    stream_folder(tmp_path / "LOST", MESSAGES)
    (tmp_path / "LOST" / "backup.json").unlink()
    (tmp_path / "EMPTY").mkdir()
    (tmp_path / "LINK").symlink_to("GOOD")
    (tmp_path / "LINKED").mkdir()
    (tmp_path / "LINKED" / "backup.json").symlink_to("../GOOD/backup.json")
    (tmp_path / "LINKED" / V1).symlink_to(f"../GOOD/{V1}")
    os.mkfifo(tmp_path / "FIFO")
    stream_folder(tmp_path / "PIPED", MESSAGES, name="PIPED")
    (tmp_path / "PIPED" / V1).unlink()
    os.mkfifo(tmp_path / "PIPED" / V1)
    stream_folder(tmp_path / "TWIN", MESSAGES, name="GOOD")
    stream_folder(tmp_path / "UP", MESSAGES)
    describe(tmp_path / "UP", {"name": ".."}, {})
    kind, names, failures = look(tmp_path)
    assert (kind, names) == (SourceKind.ACCOUNT, ["GOOD"])
    assert {name: (type(error), error.message) for name, error in failures.items()} == {
        "BOTH": (UsageError, f"BOTH holds both {V1} and {V2}"),
        "EMPTY": (UsageError, "EMPTY holds no backup of the nats CLI"),
        "FIFO": (UsageError, "FIFO is neither a file nor a folder"),
        "INTERRUPTED": (FormatError, "INTERRUPTED/backup.json is empty"),
        "LINK": (UsageError, "LINK is a symbolic link, which is not followed"),
        "LINKED": (UsageError, "LINKED/backup.json is not a regular file; links are not followed"),
        "LOST": (FormatError, "LOST has an archive, but no backup.json"),
        "PIPED": (UsageError, f"PIPED/{V1} is not a regular file; links are not followed"),
        "TWIN": (FormatError, "TWIN is a backup of stream GOOD, and so is GOOD"),
        "UP": (FormatError, "UP/backup.json: config has no stream name"),
    }


def test_names_that_are_no_text_do_no_harm(tmp_path: Path) -> None:
    stream_folder(tmp_path / os.fsdecode(b"\xff"), MESSAGES, name="GOOD")
    (tmp_path / os.fsdecode(b"\xfe\n")).mkdir()
    _, names, failures = look(tmp_path)
    assert names == ["GOOD"]
    assert list(failures) == ["\\udcfe\\x0a"]
    json.dumps([error.message for error in failures.values()], ensure_ascii=False).encode()


def test_a_repository_needs_no_import(tmp_path: Path) -> None:
    make_repository(LocalStore(tmp_path))
    with pytest.raises(UsageError, match=r"is a repository of jsbackup already"):
        look(tmp_path)


@pytest.mark.parametrize("content", [[], ["file.txt"], ["folder/file.txt"], [".hidden/backup.json"]])
def test_a_strangers_folder_is_a_usage_error(tmp_path: Path, content: list[str]) -> None:
    for name in content:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    with pytest.raises(UsageError, match=r"holds no backup of the nats CLI and no config files") as caught:
        look(tmp_path)
    assert caught.value.hint is not None and "For a table of messages, give --format." in caught.value.hint


def test_a_servers_own_store_is_recognised_by_each_of_its_folders(tmp_path: Path) -> None:
    stream = tmp_path / "jetstream" / "$G" / "streams" / "ORDERS"
    (stream / "msgs").mkdir(parents=True)
    (stream / "meta.inf").write_text("{}")
    for folder in (stream, *stream.parents[: len(stream.parts) - len(tmp_path.parts)]):
        with pytest.raises(UsageError, match=r"holds no backup of the nats CLI|is a folder") as caught:
            look(folder)
        assert caught.value.hint is not None and "--server-store" in caught.value.hint


def test_a_file_or_nothing_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "backup.tgz").write_bytes(b"")
    for name in ("backup.tgz", "missing"):
        with pytest.raises(UsageError):
            look(tmp_path / name)


def test_config_folders_without_a_config_are_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "streams").mkdir()
    with pytest.raises(UsageError, match=r"declare no stream of JetStream"):
        look(tmp_path)


def test_the_youngest_description_dates_the_backup(tmp_path: Path) -> None:
    for name, seconds in (("A", 1_700_000_000), ("B", 1_800_000_000)):
        stream_folder(tmp_path / name, MESSAGES, name=name)
        os.utime(tmp_path / name / "backup.json", (seconds, seconds))
    with ImportSource.open(tmp_path) as source:
        assert source.written_seconds == 1_800_000_000


def test_a_state_with_numbers_beyond_sequences_is_refused(tmp_path: Path) -> None:
    stream_folder(tmp_path, MESSAGES)
    describe(tmp_path, {"name": "ORDERS"}, state_with(state_of(MESSAGES), last_seq=1 << 63))
    with pytest.raises(FormatError, match=r"sequence out of range"):
        look(tmp_path)
