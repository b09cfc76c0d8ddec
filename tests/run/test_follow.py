from __future__ import annotations

import threading
import time

import pytest

from primus_core.run.follow import follow, tail


@pytest.mark.parametrize("lines", [0, 1, 3, 99, None])
@pytest.mark.parametrize("end", ["", "\n"])
def test_tail_is_the_end_of_the_text(tmp_path, lines, end):
    log = tmp_path / "log"
    written = [f"{index} {'é' * index * 300}" for index in range(200)]
    log.write_text("\n".join(written) + end)
    text, size = tail(log, lines)
    assert text.splitlines() == (written if lines is None else written[200 - min(lines, 200) :])
    assert size == log.stat().st_size


def test_follow_gives_all_that_comes_and_ends_with_the_run(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"old\n")
    over = threading.Event()

    def write():
        for byte in "neu ü\n".encode() * 20:
            with log.open("ab") as file:
                file.write(bytes([byte]))
            time.sleep(0.001)
        over.set()

    writer = threading.Thread(target=write)
    writer.start()
    assert "".join(follow(log, 4, lambda: not over.is_set(), 0.002)) == "neu ü\n" * 20
    writer.join()
