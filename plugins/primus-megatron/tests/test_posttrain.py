"""Fine-tuning for real on the CPU: all weights and LoRA, packed and not, split over ranks, stopped and continued."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from transformers import AutoTokenizer

from primus_core.cli.main import main
from primus_core.errors import UserError
from primus_megatron.checkpoints import folder_of
from primus_megatron.posttrain.samples import load, pack

type Results = dict[str, dict[str, Any]]

LENGTH = 96
LORA = {"enabled": True, "dim": 4, "alpha": 8}
PACKED = {"enable_packed_sequences": True, "micro_batch_size": 1, "global_batch_size": 4}
EXPERTS = {
    "num_experts": 4,
    "moe_router_topk": 2,
    "moe_ffn_hidden_size": 64,
    "moe_token_dispatcher_type": "alltoall",
}
ORDERED = {"dataloader_type": "single", "calculate_per_token_loss": True}
"""The same batches however many ranks share them."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokens to pretrain on, a tokenizer, and 48 conversations."""
    folder = tmp_path_factory.mktemp("data")
    assert main(["data", "prepare", "pydoc", "--output", str(folder / "pydoc"), "--train-tokenizer", "512"]) == 0
    lines = []
    for number, (name, text) in enumerate(sorted(topics.items())[:48]):
        answer = text[: 40 + 7 * (number % 9)]
        if number % 2:
            talk = [{"role": "user", "content": f"{name}?"}, {"role": "assistant", "content": answer}]
            lines.append(json.dumps({"messages": talk}))
        else:
            lines.append(json.dumps({"instruction": name, "output": answer}))
    (folder / "train.jsonl").write_text("\n".join(lines[:40]))
    (folder / "valid.jsonl").write_text("\n".join(lines[40:]))
    return folder


@pytest.fixture(scope="module")
def common(data: Path) -> dict[str, Any]:
    return {
        "seq_length": LENGTH,
        "max_position_embeddings": LENGTH,
        "tokenizer_type": "HuggingFaceTokenizer",
        "tokenizer_model": str(data / "pydoc-tokenizer"),
        "vocab_size": None,
        "mock_data": False,
        "split": None,
        "use_distributed_optimizer": True,
    }


@pytest.fixture(scope="module")
def tuning(common: dict[str, Any], data: Path) -> dict[str, Any]:
    """Fine-tuning of the base model that the module trains first."""
    return common | {
        "stage": "posttrain",
        "sft_dataset_name": str(data / "train.jsonl"),
        "valid_data_path": [str(data / "valid.jsonl")],
        "dataloader_type": "cyclic",
        "pretrained_checkpoint": str(data / "base" / "checkpoints"),
        "save": "checkpoints",
        "lr": 3e-3,
    }


@pytest.fixture(scope="module")
def one(trained: Callable[..., Results], common: dict[str, Any], tuning: dict[str, Any], data: Path) -> Results:
    base = common | {"train_data_path": [str(data / "pydoc")], "save": "checkpoints", "folder": str(data / "base")}
    lora = tuning | PACKED | {"lora": LORA}
    merged = LORA | {"save_merged": "merged"}
    last = {"eval_iters": 2, "eval_interval": 6}
    epoch = tuning | {"calculate_per_token_loss": True, "train_iters": 1, "lr_decay_iters": 1}
    return trained(
        1,
        {
            "base": base,
            "full": tuning | PACKED,
            "unpacked": tuning,
            "lora": lora | last | {"lora": merged, "folder": str(data / "lora")},
            "merged": tuning
            | PACKED
            | last
            | {"train_iters": 6, "lr": 0.0, "min_lr": 0.0, "weight_decay": 0.0}
            | {"pretrained_checkpoint": str(data / "lora" / "merged")},
            "stopped": lora | {"exit_interval": 3, "folder": str(data / "stopped")},
            "continued": lora | {"folder": str(data / "stopped")},
            "ordered": lora | ORDERED,
            "dropout": lora | {"lora": LORA | {"dropout": 0.2, "dropout_position": "post"}},
            "recompute": lora
            | {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
            "experts": lora | EXPERTS | {"pretrained_checkpoint": None, "folder": str(data / "experts")},
            "experts_again": lora
            | EXPERTS
            | ORDERED
            | {"pretrained_checkpoint": str(data / "experts" / "checkpoints")},
            "epoch_packed": epoch | PACKED | {"global_batch_size": sequences(data, common)},
            "epoch_flat": epoch | PACKED | {"micro_batch_size": 2, "global_batch_size": 2 * sequences(data, common)},
            "epoch_unpacked": epoch | {"micro_batch_size": 1, "global_batch_size": 40},
        },
    )


@pytest.fixture(scope="module")
def two(one: Results, trained: Callable[..., Results], tuning: dict[str, Any], data: Path) -> Results:
    tensor = {"tensor_model_parallel_size": 2}
    lora = tuning | PACKED | {"lora": LORA}
    return trained(
        2,
        {
            "dp": lora | ORDERED,
            "tp": lora | tensor,
            "sp": lora | tensor | {"sequence_parallel": True},
            "sp_full": tuning | PACKED | tensor | {"sequence_parallel": True},
            "pp": lora | {"pipeline_model_parallel_size": 2},
            "ep": lora
            | EXPERTS
            | ORDERED
            | {"pretrained_checkpoint": str(data / "experts" / "checkpoints"), "expert_model_parallel_size": 2},
            "tp_continued": lora | tensor | {"load": str(data / "stopped" / "checkpoints"), "ckpt_step": 3},
        },
    )


def sequences(data: Path, common: dict[str, Any]) -> int:
    """How many packed sequences hold all samples."""
    tokenizer = AutoTokenizer.from_pretrained(common["tokenizer_model"])
    found = load([str(data / "train.jsonl")], "train", "alpaca", tokenizer, LENGTH, data / "sft")
    assert len(found) == 40
    return len(pack(found.lengths, LENGTH))


def losses(result: dict[str, Any]) -> list[float]:
    return [step["loss"] for step in result["steps"]]


def weights(folder: Path, step: int) -> dict[str, torch.Tensor]:
    path = folder_of(folder / "checkpoints", step)
    stored = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    tensors = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in stored.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    dcp.load(tensors, checkpoint_id=path, no_dist=True)
    return tensors


@pytest.mark.parametrize("name", ["full", "unpacked", "lora", "dropout", "recompute", "experts"])
def test_the_loss_falls(one: Results, name: str):
    first, *_, last = losses(one[name])
    assert last < first - 0.05


def test_it_starts_from_the_pretrained_model(one: Results):
    assert losses(one["full"])[0] < losses(one["base"])[0] - 0.05
    assert losses(one["lora"])[0] == losses(one["full"])[0]
    assert losses(one["lora"])[1:] != losses(one["full"])[1:]


def test_lora_leaves_the_base_as_it_is(one: Results, data: Path):
    before, after = weights(data / "base", 6), weights(data / "lora", 6)
    names = {name for name in before if name.startswith(("decoder.", "embedding.", "output_layer."))}
    assert len(names) >= 9
    for name in names:
        assert torch.equal(before[name], after[name]), name
    added = {name.rpartition("adapter.")[2] for name in after if ".adapter." in name and "optimizer" not in name}
    assert added == {"a", "b"}


def test_recomputation_changes_nothing(one: Results):
    assert losses(one["recompute"]) == pytest.approx(losses(one["lora"]), abs=1e-5)


def test_merged_weights_do_what_the_adapters_did(one: Results):
    assert one["merged"]["evals"][-1]["loss"] == pytest.approx(one["lora"]["evals"][-1]["loss"], abs=1e-5)
    assert one["merged"]["evals"][-1]["loss"] < losses(one["full"])[0]


def test_packing_changes_neither_losses_nor_gradients(one: Results):
    """One step over all samples once, each token counting alike."""
    packed, flat, unpacked = (one[f"epoch_{name}"]["steps"][0] for name in ("packed", "flat", "unpacked"))
    assert packed["loss"] == pytest.approx(unpacked["loss"], abs=2e-6)
    assert packed["grad_norm"] == pytest.approx(unpacked["grad_norm"], rel=1e-4)
    assert flat["loss"] == pytest.approx(unpacked["loss"], abs=2e-6)


def test_stopped_and_continued_is_as_never_stopped(one: Results):
    assert losses(one["stopped"]) + losses(one["continued"]) == losses(one["lora"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "alone"), [("dp", "ordered"), ("tp", "lora"), ("sp", "lora"), ("pp", "lora"), ("ep", "experts_again")]
)
def test_ranks_share_the_work(one: Results, two: Results, name: str, alone: str):
    assert losses(two[name]) == pytest.approx(losses(one[alone]), abs=2e-4)


@pytest.mark.slow
def test_ranks_share_the_work_on_all_weights(one: Results, two: Results):
    assert losses(two["sp_full"]) == pytest.approx(losses(one["full"]), abs=2e-4)


@pytest.mark.slow
def test_adapters_continue_on_other_ranks(one: Results, two: Results):
    assert losses(two["tp_continued"]) == pytest.approx(losses(one["lora"])[3:], abs=2e-4)


# --- from the command line --------------------------------------------------------------------------------------


def test_a_bad_record_is_the_users_to_mend(data: Path, tmp_path: Path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"prompt": "a", "completion": "b"}\n{"prompt": "a"}\n')
    experiment = tmp_path / "x.yaml"
    experiment.write_text(
        "work_group: t\nuser_name: u\nexp_name: bad\nworkspace: .\n"
        "modules:\n  post_trainer:\n    framework: megatron\n    config: post_trainer.yaml\n"
        "    model: llama3.2_1B.yaml\n    overrides:\n"
        "      num_layers: 1\n      hidden_size: 64\n      ffn_hidden_size: 64\n      num_attention_heads: 4\n"
        "      num_query_groups: 2\n      kv_channels: 16\n      seq_length: 64\n      max_position_embeddings: 64\n"
        f"      tokenizer_type: HuggingFaceTokenizer\n      tokenizer_model: {data}/pydoc-tokenizer\n"
        "      train_iters: 2\n      global_batch_size: 2\n      lr_warmup_iters: 0\n"
        "      sft_dataset_name: bad.jsonl\n"
    )
    command = [sys.executable, "-m", "primus_core", "train", "posttrain", "--config", "x.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "bad.jsonl:2:1: no 'completion'" in done.stderr + done.stdout
    assert done.returncode == 2


def test_checks_name_what_cannot_be(problems: Callable[..., list[str]]):
    head = "modules:\n  post_trainer:\n    framework: megatron\n    model: llama3.1_8B.yaml\n    overrides:\n"
    overrides = (
        "sft_dataset_name: ./missing.jsonl\nsft_conversation_format: alpacca\nmock_data: true\n"
        "enable_packed_sequences: true\nmicro_batch_size: 2\npipeline_model_parallel_size: 2\n"
        "lora: {enabled: true, dim: 0, dropout: 1.5, lora_A_init_method: xaver}\n"
    )
    said = "\n".join(problems(overrides, head=head, platform="cpu"))
    for message in (
        "sft_dataset_name: there is no file ./missing.jsonl",
        "unknown format 'alpacca'; did you mean 'alpaca'?",
        "mock_data: fine-tuning needs conversations",
        "micro_batch_size: packed sequences in a pipeline need 1",
        "lora.dim: 0 is less than 1",
        "lora.dropout: 1.5 is not",
        "'xaver' is not one of xavier",
    ):
        assert message in said, message


def test_lora_options():
    from primus_megatron.posttrain.lora import Options

    assert Options.of(None) is None and Options.of({"enabled": False}) is None
    assert Options.of({"enabled": True, "dim": 4, "alpha": None}) == Options(dim=4)
    with pytest.raises(UserError, match=r"lora\.lora_A_init_method: 'xaver' is not one of xavier, kaiming"):
        Options.of({"enabled": True, "lora_A_init_method": "xaver"})
