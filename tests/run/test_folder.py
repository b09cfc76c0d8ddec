from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from primus_core.errors import EnvironmentFault
from primus_core.run import folder


def test_attempts_are_numbered(tmp_path):
    assert folder.next_attempt(tmp_path / "e") == tmp_path / "e/attempts/0001"
    assert not (tmp_path / "e").exists()
    assert folder.create(tmp_path / "e").name == "0001"
    (tmp_path / "e/attempts/0007").mkdir()
    (tmp_path / "e/attempts/notes").mkdir()
    assert folder.create(tmp_path / "e").name == "0008"


def test_two_that_start_at_once_get_their_own(tmp_path):
    with ThreadPoolExecutor(16) as pool:
        made = list(pool.map(lambda _: folder.create(tmp_path), range(64)))
    assert sorted(path.name for path in made) == [f"{number:04}" for number in range(1, 65)]


def test_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "output").touch()
    with pytest.raises(EnvironmentFault, match=r"cannot make a folder for the run: .*output"):
        folder.create(tmp_path / "output/group")
