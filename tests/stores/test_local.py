from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import NoFolder, ObjectExists, ObjectNotFound, StoreError
from jsbackup.stores import local, posix
from jsbackup.stores.local import LocalStore, remove_incoming, sorted_names


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(root: Path) -> LocalStore:
    return LocalStore(root)


def visible_files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_only_the_owner_can_read(store: LocalStore, root: Path) -> None:
    old = os.umask(0)
    try:
        store.put("a/b/c", b"secret")
    finally:
        os.umask(old)
    modes = {str(path.relative_to(root)): path.stat().st_mode & 0o777 for path in root.rglob("*")}
    assert modes == {"a": 0o700, "a/b": 0o700, "a/b/c": 0o600, ".incoming": 0o700}
    assert root.stat().st_mode & 0o777 == 0o700


def test_a_root_that_is_no_folder_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    uses: tuple[Callable[[LocalStore], object], ...] = (
        lambda store: store.put("a", b""),
        lambda store: store.get("a"),
        lambda store: list(store.list()),
        lambda store: store.glance(),
    )
    for name, says in (
        ("file", "it is not a folder"),
        ("fifo", "it is not a folder"),
        ("file/below", f"{tmp_path}/file is not a folder"),
        ("link", "it is a link to something that is not there"),
    ):
        for use in uses:
            with pytest.raises(NoFolder, match=f"cannot open {tmp_path}/{name}: {says}"):
                use(LocalStore(tmp_path / name))


def test_links_inside_the_root_are_not_followed(store: LocalStore, root: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_bytes(b"secret")
    store.put("a/real", b"")
    (root / "a/link").symlink_to(tmp_path / "outside/secret")
    (root / "folder").symlink_to(tmp_path / "outside")
    for key in ("a/link", "folder/secret"):
        for read in (store.get, store.head, lambda k: store.get_range(k, 0, 1)):
            with pytest.raises(StoreError, match="symbolic link") as caught:
                read(key)
            assert not isinstance(caught.value, ObjectNotFound)
    with pytest.raises(StoreError, match="symbolic link"):
        store.put("folder/new", b"")
    with pytest.raises(StoreError, match="symbolic link"):
        store.delete("folder/secret")
    for prefix in ("", "a/", "folder/"):
        with pytest.raises(StoreError, match="symbolic link"):
            list(store.list(prefix))
    with pytest.raises(ObjectExists):
        store.put("a/link", b"")
    assert visible_files(tmp_path / "outside") == ["secret"]
    assert (tmp_path / "outside/secret").read_bytes() == b"secret"


def test_a_fifo_does_not_hang_a_reader(store: LocalStore, root: Path) -> None:
    store.put("a/b", b"")
    os.mkfifo(root / "a/fifo")
    with pytest.raises(StoreError, match="not a regular file"):
        store.get("a/fifo")
    with pytest.raises(StoreError, match="special file"):
        list(store.list())


def test_foreign_names_are_no_objects(store: LocalStore, root: Path) -> None:
    store.put("a/b", b"")
    for name in (".DS_Store", "a/@eaDir", "a/New File.txt", "a/größe", b"a/\xff".decode("utf-8", "surrogateescape")):
        (root / name).write_bytes(b"")
    (root / "lost and found").mkdir()
    (root / "lost and found/b").write_bytes(b"")
    assert [info.key for info in store.list()] == ["a/b"]


def test_what_is_in_a_root_that_has_gone_is_not_said_to_be_absent(
    store: LocalStore, root: Path, tmp_path: Path
) -> None:
    """Nor is it taken from another folder, put or deleted there: that of the mount point, a copy, another time's."""
    store.put("first", b"1")
    store.put("a/b", b"2")
    reader = LocalStore(root)
    assert reader.get("first") == b"1"
    uses: tuple[Callable[[LocalStore], object], ...] = (
        lambda store: store.get("a/b"),
        lambda store: store.get_range("a/b", 0, 1),
        lambda store: store.head("a/b"),
        lambda store: store.get("first"),
        lambda store: list(store.list()),
        lambda store: list(store.list("a/")),
        lambda store: store.delete("a/b"),
        lambda store: store.put("a/c", b"2"),
        lambda store: store.glance(),
    )

    def refused(reason: str) -> None:
        for one in (store, reader):
            for use in uses:
                with pytest.raises(NoFolder, match=reason):
                    use(one)

    root.rename(tmp_path / "away")
    refused("it is not there any more")
    (root / "a").mkdir(parents=True)
    (root / "a/b").write_bytes(b"of another time")
    refused("another folder is there now, without first")
    assert visible_files(root) == ["a/b"]
    shutil.rmtree(root)
    (tmp_path / "away").rename(root)
    assert [info.key for info in store.list()] == ["a/b", "first"]
    reader.delete("a/b")
    assert [info.key for info in store.list()] == ["first"]


def test_without_hard_links_a_put_is_still_create_only(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*args: object, **keywords: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", no_links)
    monkeypatch.setattr(posix, "exists", lambda folder, name: False)
    store.put("a/b", b"first")
    with pytest.raises(ObjectExists):
        store.put("a/b", b"second")
    assert store.get("a/b") == b"first"
    assert visible_files(root / ".incoming") == []


def test_a_file_system_that_can_do_neither_is_refused(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*args: object, **keywords: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "no links here")

    monkeypatch.setattr(os, "link", no_links)
    monkeypatch.setattr(posix, "_RENAME_NOREPLACE", 1 << 30)  # a flag no kernel knows: EINVAL, as old file systems say
    with pytest.raises(StoreError, match="neither link nor rename"):
        store.put("a/b", b"first")
    assert list(store.list()) == []
    assert visible_files(root / ".incoming") == []


def test_a_put_that_fails_half_way_leaves_nothing(root: Path) -> None:
    """The limit on file sizes makes the kernel fail a write in the middle, as a full disk does."""
    script = (
        "import resource, sys; from pathlib import Path; from jsbackup.errors import StoreError\n"
        "from jsbackup.stores.local import LocalStore\n"
        "store = LocalStore(Path(sys.argv[1])); store.put('a/small', bytes(10))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try: store.put('a/large', bytes(200_000))\n"
        "except StoreError as error: print(error.exit_code, error)\n"
    )
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] in (resource.RLIM_INFINITY, -1)
    done = subprocess.run([sys.executable, "-c", script, str(root)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("21 cannot store a/large in ")
    assert "does not take files of this size" in done.stdout
    assert visible_files(root) == ["a/small"]


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (errno.ENOSPC, "no space left on the file system"),
        (errno.EXDEV, "invalid cross-device link"),
    ],
)
def test_errors_of_the_system_are_said_in_a_sentence(code: int, sentence: str) -> None:
    with pytest.raises(StoreError) as caught, posix.posix_errors("cannot store x"):
        raise OSError(code, "raw text")
    assert caught.value.message == f"cannot store x: {sentence}"
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize(
    ("code", "temporary"), [(errno.ESTALE, True), (errno.EMFILE, True), (errno.ENOSPC, False), (errno.EIO, False)]
)
def test_only_what_may_pass_is_temporary(store: LocalStore, code: int, temporary: bool) -> None:
    with pytest.raises(StoreError) as caught, posix.posix_errors("cannot store x"):
        raise OSError(code, "raw text")
    assert store.is_temporary(caught.value) is temporary


def leftover(root: Path, name: str, age_seconds: float) -> Path:
    path = root / ".incoming" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"half an obj")
    os.utime(path, (time.time() - age_seconds,) * 2)
    return path


def test_old_leftovers_are_swept_at_the_first_put(store: LocalStore, root: Path) -> None:
    old, young = leftover(root, "1-0", 7200), leftover(root, "2-0", 60)
    assert list(store.list()) == []
    assert old.exists()  # readers remove nothing
    store.put("a", b"")
    assert not old.exists()
    assert young.exists()
    assert [info.key for info in store.list()] == ["a"]


def test_whoever_writes_holds_its_temporary_file(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    real_write = os.write

    def write_and_sweep(file: int, data: memoryview) -> int:
        for path in (root / ".incoming").iterdir():
            os.utime(path, (time.time() - 7200,) * 2)
            seen.append(path.name)
        monkeypatch.setattr(os, "write", real_write)
        LocalStore(root).put("other", b"")
        return real_write(file, data)

    store.put("first", b"")
    monkeypatch.setattr(os, "write", write_and_sweep)
    store.put("a", b"data")
    assert len(seen) == 1
    assert store.get("a") == b"data"


def test_a_killed_writer_leaves_only_whole_objects(root: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from jsbackup.stores.local import LocalStore\n"
        "store = LocalStore(Path(sys.argv[1]))\n"
        "for n in range(100_000):\n"
        "    store.put(f'f{n % 7}/{n}', b'0123456789' * 50_000)\n"
        "    print(n, flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(root)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        done = [int(child.stdout.readline()) for _ in range(15)]
        child.send_signal(signal.SIGKILL)
        done += [int(line) for line in child.stdout]
    store = LocalStore(root)
    infos = list(store.list())
    assert {f"f{n % 7}/{n}" for n in done} <= {info.key for info in infos}
    assert len(infos) <= len(done) + 1
    for info in infos:
        assert store.get(info.key) == b"0123456789" * 50_000


def test_the_folder_of_temporary_files_may_go_at_any_time(tmp_path: Path) -> None:
    """Others remove it between each opening of it and the file in it, some times in a row."""

    class Disturbed(LocalStore):
        times = 0

        def _incoming(self, root: int) -> int:
            incoming = super()._incoming(root)
            self.times += 1
            if self.times % 4:
                remove_incoming(tmp_path / "store")
            return incoming

    store = Disturbed(tmp_path / "store")
    for number in range(30):
        store.put(f"a/{number:03}", b"x")
    assert store.times == 120
    assert len(list(store.list())) == 30
    remove_incoming(tmp_path / "store")
    assert {path.name for path in (tmp_path / "store").iterdir()} == {"a"}


_NAMES = st.text(st.characters(blacklist_characters="\0/", blacklist_categories=("Cs",)), min_size=1, max_size=12)


@settings(max_examples=50)
@given(st.lists(_NAMES | st.just("b\udcff"), unique=True), st.integers(1, 9), st.integers(1, 5))
def test_names_of_a_folder_come_in_order_however_many_runs_they_make(names: list[str], run: int, block: int) -> None:
    """Also those that are not UTF-8."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "_RUN_NAMES", run)
        patch.setattr(local, "_BLOCK_NAMES", block)
        assert list(sorted_names(iter(names))) == sorted(names)
