"""``primus data`` through its command line: tokens, splits, interruption, and what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from primus_core.cli.main import main
from primus_core.data import prepare as preparing
from primus_core.data import sources as reading
from primus_core.data.datasets import NamedText
from primus_core.data.indexed import IndexedReader
from primus_core.data.prepare import Options, prepare
from primus_core.data.sources import describe
from primus_core.data.tokenizer import find_tokenizer, train_tokenizer

TEXTS = [text for _, text in sorted(topics.items())]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(TEXTS[:20], 500, folder)
    return folder


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """80 documents of real text, each a line."""
    return jsonl(tmp_path / "corpus.jsonl", TEXTS)


def jsonl(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def primus(*words: object) -> int:
    return main([str(word) for word in words])


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def decoded(prefix: Path, tokenizer: Path) -> list[str]:
    decode = Tokenizer.from_file(str(tokenizer / "tokenizer.json")).decode
    return [decode(tokens.tolist(), skip_special_tokens=True) for tokens in IndexedReader(prefix)]


# --- what is written --------------------------------------------------------------------------------------------


def test_from_text_to_tokens_with_a_tokenizer_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    prefix = tmp_path / "out" / "pydoc"
    assert primus("data", "prepare", "pydoc", "--output", prefix, "--train-tokenizer", 600) == 0
    assert sorted(path.name for path in prefix.parent.iterdir()) == [
        "pydoc-tokenizer",
        "pydoc.bin",
        "pydoc.idx",
        "pydoc.json",
    ]
    assert decoded(prefix, tmp_path / "out" / "pydoc-tokenizer") == TEXTS
    reader = IndexedReader(prefix)
    assert {int(tokens[-1]) for tokens in reader} == {0}
    record = json.loads((tmp_path / "out" / "pydoc.json").read_text())
    assert record["tokenizer"]["vocab_size"] == 600
    assert record["files"]["pydoc"]["tokens"] == reader.tokens_total
    assert record["sources"][0]["documents"] == len(TEXTS)
    capsys.readouterr()
    assert primus("data", "info", f"{prefix}.bin") == 0
    assert f"{len(TEXTS)} documents, {reader.tokens_total:,} tokens, uint16" in capsys.readouterr().out
    assert primus("data", "show", prefix, "--doc", -1) == 0
    assert capsys.readouterr().out == TEXTS[-1] + "<|endoftext|>\n"


def test_without_end_of_document(tmp_path: Path, corpus: Path, tokenizer: Path):
    words = ["data", "prepare", corpus, "--output", tmp_path / "a", "--tokenizer", tokenizer]
    assert primus(*words, "--no-append-eod") == 0
    encode = Tokenizer.from_file(str(tokenizer / "tokenizer.json")).encode
    assert [tokens.tolist() for tokens in IndexedReader(tmp_path / "a")] == [encode(text).ids for text in TEXTS]


def test_a_large_vocabulary_takes_four_bytes(tmp_path: Path, corpus: Path, tokenizer: Path):
    large = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    large.add_tokens([f"<extra {n}>" for n in range(65500)])
    large.save(str(tmp_path / "large.json"))
    assert primus("data", "prepare", corpus, "--output", tmp_path / "a", "--tokenizer", tmp_path / "large.json") == 0
    assert IndexedReader(tmp_path / "a").dtype == "int32"


def test_what_a_tokenizer_file_says_of_truncation_is_left_aside(tmp_path: Path, corpus: Path, tokenizer: Path):
    short = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    short.enable_truncation(8)
    short.enable_padding(length=8)
    short.save(str(tmp_path / "short.json"))
    assert primus("data", "prepare", corpus, "--output", tmp_path / "a", "--tokenizer", tmp_path / "short.json") == 0
    assert decoded(tmp_path / "a", tokenizer) == TEXTS


def test_split_is_by_document_and_keeps_equal_texts_together(tmp_path: Path, tokenizer: Path):
    texts = sorted(set(TEXTS)) * 2
    corpus = jsonl(tmp_path / "corpus.jsonl", texts)
    words = ["data", "prepare", corpus, "--tokenizer", tokenizer, "--valid", 0.1]
    assert primus(*words, "--output", tmp_path / "a") == 0
    train, valid = decoded(tmp_path / "a-train", tokenizer), decoded(tmp_path / "a-valid", tokenizer)
    assert sorted(train + valid) == sorted(texts)
    assert not set(train) & set(valid)
    assert len(valid) == 2 * round(0.05 * len(texts))
    assert primus(*words, "--output", tmp_path / "b", "--seed", 1) == 0
    assert decoded(tmp_path / "b-valid", tokenizer) != valid


# --- the same bytes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [["--train-tokenizer", "600"], ["--valid", "0.2"]])
def test_workers_do_not_change_a_byte(tmp_path: Path, corpus: Path, tokenizer: Path, monkeypatch, options: list[str]):
    monkeypatch.setattr(reading, "SLICE_BYTES", 20_000)
    if "--train-tokenizer" not in options:
        options = [*options, "--tokenizer", str(tokenizer)]
    for workers in (1, 2, 3):
        prefix = tmp_path / str(workers) / "a"
        assert primus("data", "prepare", corpus, "--output", prefix, "--workers", workers, *options) == 0
    one, two, three = (files(tmp_path / str(workers)) for workers in (1, 2, 3))
    assert one == two == three
    assert len(one) >= 3


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30)
@given(st.lists(st.text(st.characters(codec="utf-8")), min_size=1), st.integers(1, 200), st.floats(0, 0.9))
def test_cutting_and_batching_do_not_change_a_byte(tmp_path_factory, tokenizer: Path, texts, size: int, valid: float):
    folder = tmp_path_factory.mktemp("cut")
    corpus = [describe(jsonl(folder / "a.jsonl", texts), "text")]
    found = find_tokenizer(str(tokenizer))
    if not any(texts) or len(set(filter(None, texts))) < 2:
        return
    prepare(corpus, Options(output=folder / "whole" / "a", tokenizer=found, valid=valid))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "SLICE_BYTES", size)
        patch.setattr(preparing, "BATCH_DOCUMENTS", 2)
        prepare(corpus, Options(output=folder / "cut" / "a", tokenizer=found, valid=valid))
    assert files(folder / "whole") == files(folder / "cut")


def test_the_fingerprint_of_a_source_is_that_of_its_texts(tmp_path: Path, corpus: Path, tokenizer: Path):
    found = find_tokenizer(str(tokenizer))
    inputs = [describe(corpus, "text"), NamedText("named", lambda: iter(TEXTS))]
    one, two = prepare(inputs, Options(output=tmp_path / "a", tokenizer=found)).record["sources"]
    assert one["fingerprint"] == two["fingerprint"]
    other = NamedText("other", lambda: iter(TEXTS[1:]))
    (three,) = prepare([other], Options(output=tmp_path / "b", tokenizer=found)).record["sources"]
    assert three["fingerprint"] != one["fingerprint"]


# --- interruption -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_killed_in_the_middle_continues_to_the_same_bytes(tmp_path: Path, corpus: Path, tokenizer: Path, workers: int):
    corpus = jsonl(tmp_path / "long.jsonl", TEXTS * 8)
    script = (
        "import sys; from primus_core.data import sources; sources.SLICE_BYTES = 100_000\n"
        "from primus_core.cli.main import main\n"
        "if __name__ == '__main__': sys.exit(main(sys.argv[1:]))"
    )
    (tmp_path / "small_parts.py").write_text(script)

    def command(prefix: Path) -> list[str]:
        words = ["data", "prepare", corpus, "--output", prefix, "--tokenizer", tokenizer, "--valid", 0.1]
        return [sys.executable, str(tmp_path / "small_parts.py"), *map(str, words), "--workers", str(workers)]

    subprocess.run(command(tmp_path / "whole" / "a"), check=True)
    work = tmp_path / "killed" / "a.work"
    with subprocess.Popen(command(tmp_path / "killed" / "a"), start_new_session=True) as process:
        wait_for(lambda: len(list(work.glob("part-*.json"))) >= 3)
        process.kill()
    wait_for(lambda: not list(running(process.pid)))
    assert files(tmp_path / "killed").keys().isdisjoint({"a-train.idx", "a-valid.idx", "a.json"})
    before = {path.name: path.stat().st_mtime_ns for path in work.glob("part-*.json")}
    assert before
    subprocess.run(command(tmp_path / "killed" / "a"), check=True)
    assert files(tmp_path / "killed") == files(tmp_path / "whole")


def test_done_parts_are_not_done_again(tmp_path: Path, corpus: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reading, "SLICE_BYTES", 50_000)
    options = Options(output=tmp_path / "a", tokenizer=find_tokenizer(str(tokenizer)))
    source = [describe(corpus, "text")]
    done = []

    def stop(at: int, total: int, tokens: int) -> None:
        done.append(at)
        if len(done) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(source, options, stop)
    prepare(source, options, lambda at, total, tokens: done.append(at))
    assert done == sorted(set(done))
    assert decoded(tmp_path / "a", tokenizer) == TEXTS


def test_other_input_starts_over(tmp_path: Path, corpus: Path, tokenizer: Path):
    options = Options(output=tmp_path / "a", tokenizer=find_tokenizer(str(tokenizer)))

    def stop(at: int, total: int, tokens: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare([describe(corpus, "text")], options, stop)
    jsonl(corpus, TEXTS[:3])
    prepare([describe(corpus, "text")], options)
    assert decoded(tmp_path / "a", tokenizer) == TEXTS[:3]


def test_two_at_once_are_refused(tmp_path: Path, corpus: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]):
    options = Options(output=tmp_path / "a", tokenizer=find_tokenizer(str(tokenizer)))
    codes = []

    def second(at: int, total: int, tokens: int) -> None:
        codes.append(primus("data", "prepare", corpus, "--output", tmp_path / "a", "--tokenizer", tokenizer))

    prepare([describe(corpus, "text")], options, second)
    assert codes == [2]
    assert "another process is preparing it" in capsys.readouterr().err
    assert decoded(tmp_path / "a", tokenizer) == TEXTS


def wait_for(condition) -> None:
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)
    raise TimeoutError


def running(session: int) -> Iterator[int]:
    """Processes of a session that are alive."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[3]) == session and fields[0] != "Z":
                yield int(entry.name)


# --- refusals ---------------------------------------------------------------------------------------------------


def test_output_that_exists_is_kept_unless_forced(tmp_path: Path, corpus: Path, tokenizer: Path, capsys):
    words = ["data", "prepare", corpus, "--output", tmp_path / "a", "--tokenizer", tokenizer]
    assert primus(*words) == 0
    before = files(tmp_path)
    assert primus(*words) == 2
    assert "a.idx exists; --force replaces it" in capsys.readouterr().err
    assert files(tmp_path) == before
    assert primus(*words, "--force", "--valid", 0.1) == 0
    assert {path.name for path in tmp_path.glob("a*")} == {
        "a-train.bin", "a-train.idx", "a-valid.bin", "a-valid.idx", "a.json"
    }  # fmt: skip


def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The message of a command that must leave nothing behind."""
    before = files(tmp_path)
    assert primus("data", "prepare", *words, "--output", tmp_path / "out") == 2
    assert files(tmp_path) == before
    assert not list(tmp_path.glob("out*"))
    error = capsys.readouterr().err
    assert "Traceback" not in error
    return error.replace(f"{tmp_path}/", "")


def test_bad_input_is_told_and_leaves_nothing(tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]):
    use = ("--tokenizer", tokenizer)
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "one"}\n{"text": \n{"body": "x"}\n')
    assert refused(tmp_path, capsys, bad, *use).splitlines() == [
        "primus: bad.jsonl:2:9: not JSON: Expecting value",
        "bad.jsonl:3:1: no key 'text'; there are 'body': choose one with --key",
    ]
    bad.write_text("\n\n")
    assert "no documents in bad.jsonl" in refused(tmp_path, capsys, bad, *use)
    bad.write_text("")
    assert "bad.jsonl: empty file" in refused(tmp_path, capsys, bad, *use)
    bad.write_text('{"text": "one"}\n')
    assert "one document cannot be split" in refused(tmp_path, capsys, bad, *use, "--valid", 0.5)
    assert "choose one of --tokenizer and --train-tokenizer" in refused(tmp_path, capsys, bad)
    assert "--train-tokenizer 10: at least 257" in refused(tmp_path, capsys, bad, "--train-tokenizer", 10)
    assert "pydok: no such file, folder or dataset; did you mean 'pydoc'?" in refused(tmp_path, capsys, "pydok", *use)
    assert "does not take these options" in refused(tmp_path, capsys, "pydoc?lang=de", *use)


def test_bad_tokenizers_are_told(tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "none").mkdir()
    (tmp_path / "bad.json").write_text("{}")
    said = [
        refused(tmp_path, capsys, "pydoc", "--tokenizer", name)
        for name in (tmp_path / "none", tmp_path / "bad.json", tmp_path / "missing" / "x")
    ]
    assert "none: has no tokenizer.json" in said[0]
    assert "bad.json: not a tokenizer.json" in said[1]
    assert "no such file or folder" in said[2]
    assert "--eod-token </s>: not in the vocabulary" in refused(
        tmp_path, capsys, "pydoc", "--tokenizer", tokenizer, "--eod-token", "</s>"
    )


def test_missing_packages_are_named(tmp_path: Path):
    code = (
        "import sys; sys.modules['tokenizers'] = None\n"
        "from primus_core.cli.main import main\n"
        f"sys.exit(main(['data', 'prepare', 'pydoc', '--output', {str(tmp_path / 'a')!r}, '--train-tokenizer', '300']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 3
    assert "tokenizers is not installed: pip install 'primus-core[data]'" in done.stderr
    assert not list(tmp_path.iterdir())


def test_interrupt_leaves_the_work_for_the_next_try(tmp_path: Path, tokenizer: Path):
    corpus = jsonl(tmp_path / "long.jsonl", TEXTS * 40)
    words = ["data", "prepare", corpus, "--output", tmp_path / "a", "--tokenizer", tokenizer, "--workers", 1]
    with subprocess.Popen(
        [sys.executable, "-c", "from primus_core.cli.main import run; run()", *map(str, words)]
    ) as process:
        wait_for((tmp_path / "a.work" / "part-000000.json").exists)
        os.kill(process.pid, signal.SIGINT)
    assert process.returncode != 0
    assert (tmp_path / "a.work").is_dir()
    assert not (tmp_path / "a.idx").exists()
