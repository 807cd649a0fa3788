"""The folder of a drill goes with it, and those that killed ones have left go with the next."""

from __future__ import annotations

from pathlib import Path

import pytest

from jsbackup.engine.check.drill import drill_folder
from jsbackup.errors import UsageError


def test_it_is_for_its_user_only_and_gone_afterwards(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), drill_folder(tmp_path) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "store").mkdir()
        (folder / "store" / "messages").write_text("secret")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_one_has_left_is_removed_and_what_lives_is_not(tmp_path: Path) -> None:
    for name in ("jsbackup-drill-killed", "jsbackup-drill-strange", "other"):
        (tmp_path / name).mkdir()
        if name != "jsbackup-drill-strange":
            (tmp_path / name / "lock").write_text("")
    with drill_folder(tmp_path) as living, drill_folder(tmp_path) as folder:
        assert set(tmp_path.iterdir()) == {
            living,
            folder,
            tmp_path / "jsbackup-drill-strange",  # without a lock it may be anybody's
            tmp_path / "other",
        }


def test_a_place_where_none_can_be_made_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no folder can be made"), drill_folder(tmp_path / "nothing"):
        pass
