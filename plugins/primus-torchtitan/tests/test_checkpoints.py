"""Saving, going on, and exchanging weights, with the real engine on the CPU."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

type Results = dict[str, dict[str, Any]]

LLAMA = {"name": "llama3", "flavor": "debugmodel", "dim": 64, "n_layers": 2, "n_heads": 4, "vocab_size": 512}
TEXT = "".join(f"The square of {number} is {number * number}, its half {number / 2}. " for number in range(40))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text as JSON lines and as prepared tokens, and their tokenizer."""
    from primus_core.data.prepare import Options, prepare
    from primus_core.data.sources import find_files

    folder = tmp_path_factory.mktemp("corpus")
    lines = (json.dumps({"text": TEXT, "body": f"{TEXT[number:]} {number}"}) for number in range(60))
    (folder / "some.jsonl").write_text("\n".join(lines))
    files, _ = find_files([str(folder / "some.jsonl")], "body")
    prepare(files, Options(output=folder / "some", tokenizer=None, train_vocab_size=300))
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


def case(corpus: Path, kind: str, folder: Path | None = None, steps: int = 4, **checkpoint: Any) -> dict[str, Any]:
    data = {
        "text": {"dataset": "text", "dataset_path": f"{corpus}/some.jsonl", "dataset_key": "body"},
        "tokens": {"dataset": "tokens", "dataset_path": f"{corpus}/some"},
        "mock": {"mock_data": True},
    }[kind]
    training = {"mock_data": False, **data, "steps": steps, "local_batch_size": 2}
    saving = {"checkpoint": {"enable": True, "interval": 2, "last_save_model_only": False, **checkpoint}}
    return {
        "model": {**LLAMA, "hf_assets_path": f"{corpus}/some-tokenizer"},
        "training": training,
        "lr_scheduler": {"warmup_steps": 2, "total_steps": 8},
        "validation": {"enable": kind != "mock", "freq": 4, "steps": 2, "seq_len": 32, "local_batch_size": 2, **data},
        **(saving if folder else {}),
        **({"folder": str(folder)} if folder else {}),
    }


KINDS = ("text", "tokens", "mock")


@pytest.fixture(scope="module")
def two(trained: Callable[..., Results], corpus: Path, runs: Path) -> Results:
    """Each kind of data: eight steps at once, and four with four more behind."""
    cases = {}
    for kind in KINDS:
        cases[f"{kind}, at once"] = case(corpus, kind, steps=8)
        cases[f"{kind}, begun"] = case(corpus, kind, runs / kind, steps=4)
        cases[f"{kind}, gone on"] = case(corpus, kind, runs / kind, steps=8)
        cases[f"{kind}, in the background"] = case(corpus, kind, runs / f"{kind}-async", steps=4, async_mode="async")
    return trained(2, cases)


@pytest.fixture(scope="module")
def one(trained: Callable[..., Results], two: Results, corpus: Path, runs: Path) -> Results:
    """What was begun on two ranks goes on with one, in batches of the same size."""
    cases = {}
    for kind, more in (("tokens", {}), ("text", {}), ("text", {"exclude_from_loading": ["dataloader"]})):
        folder = runs / f"{kind} on one{len(more)}"
        shutil.copytree(runs / kind, folder)
        values = case(corpus, kind, folder, steps=8, load_step=4, **more)
        values["training"]["local_batch_size"] = 4
        cases[f"{kind}{', anew' if more else ''}"] = values
    broken = runs / "broken"
    (broken / "checkpoints" / "step-7").mkdir(parents=True)
    cases["broken"] = case(corpus, "mock", broken)
    cases["weights"] = case(corpus, "mock", runs / "weights", last_save_model_only=True, interval=100)
    cases["weights only"] = case(corpus, "mock", runs / "weights", steps=6)
    cases["no such step"] = case(corpus, "mock", runs / "weights", steps=6, load_step=3)
    cases["finished"] = case(corpus, "mock", runs / "mock", steps=8)
    for field, value in (("n_layers", 3), ("dim", 128)):
        cases[f"other {field}"] = case(corpus, "mock", runs / "mock", steps=8)
        cases[f"other {field}"]["model"] = {**LLAMA, field: value}
    cases["small vocabulary"] = case(corpus, "tokens")
    cases["small vocabulary"]["model"] = {**LLAMA, "vocab_size": 256}
    exported = {"last_save_in_hf": True, "last_save_model_only": True}
    qwen = {**LLAMA, "name": "qwen3", "n_kv_heads": 2, "head_dim": 16, "hidden_dim": 128}
    tied = {**LLAMA, "flavor": "1B", "n_kv_heads": 2}
    for name, model in (("llama", LLAMA), ("qwen", qwen), ("tied", tied)):
        values = case(corpus, "tokens", runs / name, **exported)
        values["model"] |= model
        again = case(corpus, "tokens", runs / f"{name} again", steps=1, initial_load_in_hf=True)
        again["checkpoint"]["initial_load_path"] = f"{runs}/{name}/checkpoints/step-4"
        again["model"] |= model
        if name == "tied":
            values["preset"] = again["preset"] = "llama3.2_1B"
        cases |= {name: values, f"{name} again": again}
    return trained(1, cases)


def losses(result: dict[str, Any]) -> list[float]:
    assert "error" not in result
    return [step["loss"] for step in result["steps"]]


@pytest.mark.parametrize("kind", KINDS)
def test_going_on_gives_the_same_bits(two: Results, kind: str) -> None:
    at_once, begun, gone_on = (two[f"{kind}, {how}"] for how in ("at once", "begun", "gone on"))
    assert losses(begun) + losses(gone_on) == losses(at_once)
    assert gone_on["notes"] == ["goes on after step 4"] and gone_on["expect"] == [8, 4]
    assert [step for step, _ in begun["checkpoints"]] == [2, 4]
    assert gone_on["steps"][0]["tokens"] == 5 * 2 * 2 * 32
    assert losses(two[f"{kind}, in the background"]) == losses(begun)
    assert [step for step, _ in two[f"{kind}, in the background"]["checkpoints"]] == [2, 4]


def test_prepared_tokens_go_on_with_another_number_of_ranks(one: Results, two: Results) -> None:
    assert losses(one["tokens"]) == pytest.approx(losses(two["tokens, gone on"]), rel=1e-5)
    assert [step["tokens"] for step in one["tokens"]["steps"]] == [
        step["tokens"] for step in two["tokens, gone on"]["steps"]
    ]


def test_text_cannot_be_dealt_anew_but_started_anew(one: Results) -> None:
    assert "is that of 2 data-parallel ranks, and there are 1" in one["text"]["error"]
    assert "exclude_from_loading: [dataloader]" in one["text"]["error"]
    assert [step["step"] for step in one["text, anew"]["steps"]] == [5, 6, 7, 8]


def test_validation_falls_with_training(two: Results) -> None:
    for kind in ("text", "tokens"):
        first, *_, last = two[f"{kind}, at once"]["evals"]
        assert last["loss"] < first["loss"]


def test_an_interrupted_save_is_removed(one: Results) -> None:
    assert one["broken"]["notes"][0] == "removed step-7: it was not saved to its end"
    assert len(losses(one["broken"])) == 4


def test_weights_alone_are_no_place_to_go_on_from(one: Results) -> None:
    assert "holds weights only" in one["weights only"]["error"]
    assert "there is no step 3; there are 4" in one["no such step"]["error"]


def test_a_checkpoint_of_another_model_is_refused(one: Results) -> None:
    assert "is of another model: there is no layers.2." in one["other n_layers"]["error"]
    assert "tok_embeddings.weight is [512, 64], and [512, 128] here" in one["other dim"]["error"]


def test_a_finished_run_has_nothing_to_do(one: Results) -> None:
    assert one["finished"]["notes"] == ["goes on after step 8", "nothing is left to do: training.steps is 8"]
    assert losses(one["finished"]) == []


def test_a_tokenizer_larger_than_the_model_is_refused(one: Results) -> None:
    assert "the model's vocabulary 256" in one["small vocabulary"]["error"]


@pytest.mark.parametrize("name", ["llama", "qwen", "tied"])
def test_exported_weights_give_the_same_loss_and_logits(one: Results, runs: Path, corpus: Path, name: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = runs / name / "checkpoints" / "step-4"
    assert not (folder / "sharded").exists()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert model.config.tie_word_embeddings == (name != "llama")
    assert AutoTokenizer.from_pretrained(folder).vocab_size <= 512
    from primus_core.data.indexed import IndexedReader
    from primus_core.data.samples import Samples

    samples = Samples(IndexedReader(corpus / "some"), 32, 4, 42)
    tokens = torch.stack([torch.from_numpy(samples[number]) for number in range(2)])
    logits = model(tokens[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    assert losses(one[f"{name} again"])[0] == pytest.approx(loss.item(), rel=1e-5)
