"""``primus verify``: what it measures against transformers' own figures, and what it says of models that are wrong."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_models import TEXT, Primus, make_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from primus_core.errors import UserError
from primus_eval.orders import CompareOrder, VerifyOrder
from primus_eval.verifying import compare, verify


def order(model: Path, **given: Any) -> VerifyOrder:
    values: dict[str, Any] = {
        "model": str(model),
        "tokenizer": str(model),
        "dtype": "float32",
        "device": "cpu",
        "trust": False,
        "text_file": None,
        "prompt": "The water",
        "top": 3,
        "tokens": 32,
        "logits": None,
    }
    return VerifyOrder(**values | given)


def measured(model: Path, **given: Any) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(verify(order(model, **given).text()))
    return result


def changed(source: Path, folder: Path, change: Any) -> Path:
    """A copy of a model whose weights went through ``change``."""
    shutil.copytree(source, folder)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_figures_are_those_of_transformers(llama: Path, tmp_path: Path) -> None:
    found = measured(llama, logits=str(tmp_path / "logits.safetensors"))
    model, words = AutoModelForCausalLM.from_pretrained(llama), AutoTokenizer.from_pretrained(llama)
    ids = words(TEXT.read_text(), return_tensors="pt")["input_ids"]
    with torch.no_grad():
        assert found["loss"] == pytest.approx(model(ids, labels=ids).loss.item(), rel=1e-5)
        logits = model(torch.tensor(found["tokens"])).logits
        following = model(words("The water", return_tensors="pt")["input_ids"]).logits[0, -1].softmax(-1)
    assert found["guessing"] == math.log(512)
    assert found["bits_per_byte"] == pytest.approx(
        found["loss"] * (ids.numel() - 1) / math.log(2) / len(TEXT.read_bytes())
    )
    assert torch.equal(load_file(tmp_path / "logits.safetensors")["logits"], logits)
    assert found["prompt"][0] == [words.decode([int(following.argmax())]), pytest.approx(following.max().item())]
    assert found["cache"] < 1e-5
    assert (found["missing"], found["extra"], found["mismatched"]) == ([], [], [])


def test_weights_that_do_not_fit_are_named(llama: Path, tmp_path: Path) -> None:
    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.extra.weight"] = torch.zeros(2)
        del tensors["model.norm.weight"]
        tensors["lm_head.weight"] = torch.zeros(10, 64)

    found = measured(changed(llama, tmp_path / "spoilt", spoil))
    assert found["missing"] == ["model.norm.weight"]
    assert found["extra"] == ["model.extra.weight"]
    assert found["mismatched"] == ["lm_head.weight: [10, 64], expected [512, 64]"]
    assert "loss" not in found


def test_another_models_logits_differ(llama: Path, tmp_path: Path) -> None:
    def nudge(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.norm.weight"] *= 1.001

    files = [str(tmp_path / name) for name in ("one.safetensors", "other.safetensors")]
    for model, file in zip((llama, changed(llama, tmp_path / "nudged", nudge)), files, strict=True):
        measured(model, logits=file)
    same = json.loads(compare(CompareOrder(one=files[0], other=files[0], vocabulary=512).text()))
    other = json.loads(compare(CompareOrder(one=files[0], other=files[1], vocabulary=512).text()))
    assert same["difference"] == 0.0
    assert 1e-5 < other["difference"] < 1e-2
    save_file({"logits": torch.zeros(2, 31, 512)}, files[1])
    with pytest.raises(UserError, match=r"\[2, 32, 512\] and \[2, 31, 512\]: this is another model"):
        compare(CompareOrder(one=files[0], other=files[1], vocabulary=512).text())


def test_a_tokenizer_of_another_model(llama: Path, tmp_path: Path) -> None:
    large = make_tokenizer(tmp_path / "large", 600)
    with pytest.raises(UserError, match=r"the tokenizer has \d+ tokens and the model 512: .* --tokenizer DIR"):
        measured(llama, tokenizer=str(large))
    (large / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"the tokenizer \(tokenizer.*\) cannot be read"):
        measured(llama, tokenizer=str(large))


def test_damaged_weights(llama: Path, tmp_path: Path) -> None:
    damaged = shutil.copytree(llama, tmp_path / "damaged")
    content = (damaged / "model.safetensors").read_bytes()
    (damaged / "model.safetensors").write_bytes(content[:-100])
    with pytest.raises(UserError, match="damaged: the weights"):
        measured(damaged)


def test_an_unknown_model_type_says_what_to_do(llama: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(llama, tmp_path / "gdn")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "zebra_llama"}))
    with pytest.raises(UserError, match=r"does not know this model type; .* convert the checkpoint again"):
        measured(folder)


# --- the command --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (None, "no such folder; a model is a folder with config.json"),
        ({}, "no config.json there; primus convert makes one of a checkpoint"),
        ({"config.json": "{"}, "config.json: Expecting property name"),
        ({"config.json": "{}"}, "is no configuration of a model: it has no model_type"),
        ({"config.json": '{"model_type": "llama"}'}, "no weights there, neither"),
        (
            {
                "config.json": '{"model_type": "x", "auto_map": {"AutoConfig": "evil.C"}}',
                "model.safetensors": "",
                "evil.py": "",
            },
            "brings code of its own, evil.py; read it, and allow it with --trust-remote-code",
        ),
    ],
)
def test_a_folder_that_is_no_model(
    files: dict[str, str] | None, message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from primus_core.cli.main import main

    folder = tmp_path / "model"
    if files is not None:
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text)
    for command in (["verify"], ["eval", "--tasks", "piqa"], ["chat"]):
        assert main([*command, str(folder)]) == 2
        assert message in capfd.readouterr().err


@pytest.mark.slow
def test_verify_tells_by_its_exit_code(llama: Path, primus: Primus, tmp_path: Path) -> None:
    done = primus("verify", llama, "--against", llama)
    assert done.returncode == 0, done.stderr
    assert "weights: 0 missing, 0 extra, 0 shape mismatches" in done.stdout
    assert f"against {llama}: logits differ by 0.0e+00" in done.stdout
    assert "no better than guessing" in done.stdout
    wrong = changed(llama, tmp_path / "wrong", lambda tensors: tensors["model.norm.weight"].mul_(1.1))
    done = primus("verify", wrong, "--against", llama, "--json", "--max-loss", "1")
    assert done.returncode == 1
    assert json.loads(done.stdout)["against"]["difference"] > 1e-3
    assert "logits differ by" in done.stderr and "more than 1.0" in done.stderr
