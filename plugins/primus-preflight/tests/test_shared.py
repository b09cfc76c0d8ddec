from __future__ import annotations

import threading

from primus_preflight import shared


def both(folders, monkeypatch, patience):
    monkeypatch.setattr(shared, "_PATIENCE", patience)
    barrier = threading.Barrier(len(folders))
    found = [None] * len(folders)

    def node(index):
        found[index] = shared.consistent(folders[index], "token", index, len(folders), True, barrier.wait)

    threads = [threading.Thread(target=node, args=(index,)) for index in range(len(folders))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_one_folder_for_all(tmp_path, monkeypatch):
    for problems, rate in both([tmp_path] * 2, monkeypatch, 20):
        assert problems == []
        assert rate > 0
    assert not list(tmp_path.iterdir())


def test_folders_that_are_not_shared(tmp_path, monkeypatch):
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    found = both(folders, monkeypatch, 0.5)
    assert found[0][0] == [f"{folders[0]} is not shared: files of node 1 do not appear"]
    assert found[1][0] == [f"{folders[1]} is not shared: files of node 0 do not appear"]


def test_folder_that_cannot_be_written(tmp_path, monkeypatch):
    found = both([tmp_path, tmp_path / "missing"], monkeypatch, 0.5)
    assert found[1][0][0] == f"cannot write into {tmp_path / 'missing'}: No such file or directory"
