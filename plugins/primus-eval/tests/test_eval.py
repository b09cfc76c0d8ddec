"""``primus eval`` and ``primus data tasks``: scores against ones computed by hand, with no network but a local hub."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import torch
from small_models import Primus
from transformers import AutoModelForCausalLM, AutoTokenizer

QUESTIONS = [{"q": f"The river {n}", "choices": ["runs", "stops here", "is a valley"], "a": n % 3} for n in range(7)]
CHOOSE = """
task: choose
dataset_path: json
dataset_kwargs: {data_files: {test: choose.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{q}}"
doc_to_choice: "{{choices}}"
doc_to_target: a
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
GO_ON = """
task: go_on
dataset_path: json
dataset_kwargs: {data_files: {test: choose.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "{{q}}"
doc_to_target: "{{choices[0]}}"
generation_kwargs: {until: ["\\n\\n"], max_gen_toks: 4}
metric_list: [{metric: !function score.words, aggregation: mean, higher_is_better: true}]
"""
SCORE = "def words(references, predictions):\n    return len(predictions[0].split())\n"


@pytest.fixture
def own_tasks(tmp_path: Path) -> Path:
    folder = tmp_path / "own"
    folder.mkdir()
    files = {"choose.yaml": CHOOSE, "go_on.yaml": GO_ON, "score.py": SCORE}
    files["choose.jsonl"] = "".join(json.dumps(each) + "\n" for each in QUESTIONS)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


ROWS = {
    "id": ["a", "b", "c"],
    "question": ["Water runs", "Stones", "A bridge"],
    "choices": [{"text": ["down", "up"], "label": ["A", "B"]}] * 3,
    "answerKey": ["A", "B", "A"],
}
README = """---
configs:
- config_name: ARC-Easy
  data_files:
  - {split: train, path: ARC-Easy/train.parquet}
  - {split: validation, path: ARC-Easy/train.parquet}
  - {split: test, path: ARC-Easy/test.parquet}
---
"""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[str]:
    """Hugging Face's hub as far as a snapshot needs it, with one data set."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    root = tmp_path / "hub"
    (root / "ARC-Easy").mkdir(parents=True)
    (root / "README.md").write_text(README)
    for split in ("train", "test"):
        pq.write_table(pa.table(ROWS), root / f"ARC-Easy/{split}.parquet")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Hub, root))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


class Hub(BaseHTTPRequestHandler):
    def __init__(self, root: Path, *given: object) -> None:
        self.root = root
        super().__init__(*given)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        path, sha = self.path.partition("?")[0], "0" * 40
        files = {str(file.relative_to(self.root)): file for file in self.root.rglob("*") if file.is_file()}
        listed = [
            {"type": "file", "path": name, "size": file.stat().st_size, "oid": hashlib.sha1(name.encode()).hexdigest()}
            for name, file in files.items()
        ]
        if path == "/api/datasets/allenai/ai2_arc/revision/main":
            self.give(json.dumps({"id": "allenai/ai2_arc", "sha": sha, "siblings": []}).encode())
        elif path == f"/api/datasets/allenai/ai2_arc/tree/{sha}":
            self.give(json.dumps(listed).encode())
        elif (name := path.removeprefix(f"/datasets/allenai/ai2_arc/resolve/{sha}/")) in files:
            self.give(files[name].read_bytes(), ETag=f'"{hashlib.sha1(name.encode()).hexdigest()}"', commit=sha)
        else:
            self.send_error(404)

    do_HEAD = do_GET

    def give(self, content: bytes, ETag: str = "", commit: str = "") -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        if commit:
            self.send_header("ETag", ETag)
            self.send_header("X-Repo-Commit", commit)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *given: object) -> None:
        pass


def accuracy(model: Path) -> float:
    """Of QUESTIONS: the choice with the highest probability as a continuation."""
    network, words = AutoModelForCausalLM.from_pretrained(model), AutoTokenizer.from_pretrained(model)
    right = 0
    for each in QUESTIONS:
        scores = []
        for choice in each["choices"]:
            before = words(each["q"])["input_ids"]
            ids = torch.tensor([words(f"{each['q']} {choice}")["input_ids"]])
            with torch.no_grad():
                chances = network(ids).logits[0, :-1].log_softmax(-1)
            taken = chances.gather(1, ids[0, 1:, None])[:, 0]
            scores.append(taken[len(before) - 1 :].sum().item())
        right += max(range(3), key=scores.__getitem__) == each["a"]
    return right / len(QUESTIONS)


@pytest.mark.slow
def test_own_tasks_and_one_of_the_harness_without_network(
    llama: Path, own_tasks: Path, hub: str, primus: Primus, tmp_path: Path
) -> None:
    done = primus("data", "tasks", "arc_easy", "--output", "sets", HF_ENDPOINT=hub)
    assert done.returncode == 0, done.stderr
    assert "allenai/ai2_arc: sets/allenai/ai2_arc\n1 tasks; evaluate with --data sets" in done.stdout

    tasks = f"arc_easy,{own_tasks / 'choose.yaml'},go_on"
    done = primus(
        *("eval", llama, "--tasks", tasks, "--include", own_tasks, "--data", "sets"),
        *("--output", "scores", "--log-samples"),
    )
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "scores/results.json").read_text())["results"]
    assert results["choose"]["acc,none"] == pytest.approx(accuracy(llama))
    assert results["arc_easy"]["sample_len"] == 3
    assert 0 <= results["go_on"]["words,none"] <= 4
    lines = (tmp_path / "scores/samples_go_on.jsonl").read_text().splitlines()
    assert len(lines) == len(QUESTIONS)
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row[:2] for row in rows] == [
        ["task", "metric"],
        ["arc_easy", "acc"],
        ["arc_easy", "acc_norm"],
        ["choose", "acc"],
        ["go_on", "words"],
    ]
    assert rows[3][-1] == "7"


@pytest.mark.slow
def test_what_cannot_be_evaluated(llama: Path, primus: Primus, tmp_path: Path) -> None:
    (tmp_path / "sets").mkdir()
    done = primus("eval", llama, "--tasks", "piqa", "--data", "sets")
    assert (done.returncode, done.stdout) == (2, "")
    assert "the data set baber/piqa is not in" in done.stderr
    assert f"'primus data tasks TASK --output {tmp_path}/sets' lays it down where there is network" in done.stderr
    done = primus("eval", llama, "--tasks", "arc_eazy")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--tasks arc_eazy: no such task; did you mean arc_easy" in done.stderr


def test_missing_packages_are_named(
    llama: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import importlib.util

    from primus_core.cli.main import main

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "lm_eval" else real(name, *a))
    assert main(["eval", str(llama), "--tasks", "piqa"]) == 3
    assert "lm-eval is not installed: pip install 'primus-eval[tasks]'" in capfd.readouterr().err
