"""From YAML values to Megatron's own arguments."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from primus_core.errors import UserError
from primus_core.run.context import Place
from primus_core.run.recovery import Recovery
from primus_megatron import arguments

BASE = {
    "num_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "seq_length": 64,
    "micro_batch_size": 2,
    "mock_data": True,
    "vocab_size": 256,
    "lr": 1e-3,
}


@pytest.fixture
def parse(tmp_path: Path):
    def parse(notes: list[str] | None = None, ranks: int = 1, **values: Any) -> Any:
        run = SimpleNamespace(
            config=BASE | values,
            platform="cpu",
            name="test",
            folder=tmp_path,
            attempt=tmp_path / "attempts/0001",
            place=Place(rank=0, local_rank=0, world_size=ranks, local_world_size=ranks),
            note=(notes if notes is not None else []).append,
            recovery=Recovery(),
        )
        return arguments.parse(run)

    return parse


def test_values_become_arguments(parse):
    args = parse(
        ranks=2, lr=1, global_batch_size=8, data_cache_path="x", moe_layer_freq="([0]*1+[1]*1)", iterations_to_skip=[3]
    )
    assert (args.lr, type(args.lr)) == (1.0, float)
    assert (args.world_size, args.data_parallel_size, args.global_batch_size) == (2, 2, 8)
    assert args.moe_layer_freq == [0, 1]
    assert args.iterations_to_skip == [3]


def test_null_is_the_default_of_the_engine(parse):
    args = parse(seed=None, ffn_hidden_size=None, adam_beta2=None)
    assert (args.seed, args.adam_beta2, args.ffn_hidden_size) == (1234, 0.999, 256)


def test_keys_that_the_engine_does_not_know_are_left_out(parse):
    assert not hasattr(parse(enable_primus_turbo=True), "enable_primus_turbo")


@pytest.mark.parametrize("value", ["0.3 a 0.7 b", [0.3, "a", 0.7, "b"], ["0.3", "a", "0.7", "b"]])
def test_lists_may_be_text(parse, value: Any):
    args = parse(train_data_path=value, mock_data=False, tokenizer_type="NullTokenizer")
    assert list(map(str, args.train_data_path)) == ["0.3", "a", "0.7", "b"]


def test_the_platform_decides_the_backend_of_groups(parse):
    assert parse(distributed_backend="nccl").distributed_backend == "gloo"


def test_without_transformer_engine_what_is_faster_goes_off_in_one_line(parse):
    notes: list[str] = []
    args = parse(notes, transformer_impl="transformer_engine", apply_rope_fusion=True, moe_permute_fusion=True)
    assert args.transformer_impl == "local"
    assert not args.apply_rope_fusion and not args.moe_permute_fusion
    assert notes == [
        "Transformer Engine is not installed: Megatron's local layers with PyTorch's attention; "
        "off: apply_rope_fusion, moe_permute_fusion"
    ]


@pytest.mark.parametrize("values", [{"fp8": "hybrid"}, {"fp4": "e2m1"}])
def test_without_transformer_engine_what_computes_otherwise_is_refused(parse, values: dict[str, Any]):
    with pytest.raises(UserError, match="Transformer Engine is not installed, and this needs it: fp"):
        parse(**values)


def test_megatron_says_no(parse):
    with pytest.raises(UserError, match="Megatron refuses these values: expected iteration-based training"):
        parse(train_iters=5, train_samples=10)


def test_an_assertion_without_words_is_told_by_its_line(parse):
    with pytest.raises(UserError, match=r"Megatron refuses these values: assert args\.min_lr <= args\.lr"):
        parse(min_lr=1.0)


def test_mock_data_needs_no_tokenizer(parse):
    args = parse(tokenizer_type="HuggingFaceTokenizer", tokenizer_model="meta-llama/Llama-3.1-8B")
    assert (args.tokenizer_type, args.vocab_size) == ("NullTokenizer", 256)


def test_mock_data_needs_the_size_of_a_vocabulary(parse):
    with pytest.raises(UserError, match="mock_data: vocab_size must be given"):
        parse(vocab_size=None, tokenizer_model="someone/model")


@pytest.mark.parametrize("kind", ["Llama3Tokenizer", "DeepSeekV2Tokenizer", None])
def test_old_names_of_tokenizers_mean_the_one_of_transformers(parse, kind: str | None, tmp_path: Path):
    (tmp_path / "tokenizer.json").touch()
    args = parse(tokenizer_type=kind, tokenizer_model=str(tmp_path / "tokenizer.json"))
    assert (args.tokenizer_type, args.tokenizer_model) == ("HuggingFaceTokenizer", str(tmp_path))


def saved(folder: Path, step: int) -> None:
    folder.mkdir(parents=True)
    (folder / "latest_checkpointed_iteration.txt").write_text(str(step))


def test_nothing_is_saved_unless_asked(parse):
    assert (parse().save, parse(save=None).save, parse().load) == (None, None, None)


def test_checkpoints_lie_in_the_folder_of_the_experiment(parse, tmp_path: Path):
    args = parse(save="checkpoints", save_interval=5)
    assert (args.save, args.load) == (str(tmp_path / "checkpoints"), None)


def test_what_was_saved_last_goes_before_what_was_asked_to_load(parse, tmp_path: Path):
    saved(tmp_path / "checkpoints", 5)
    saved(tmp_path / "base", 100)
    values = {"save": "checkpoints", "save_interval": 5, "load": str(tmp_path / "base"), "finetune": True}
    args = parse(**values)
    assert (args.load, args.finetune, args.no_load_optim) == (str(tmp_path / "checkpoints"), False, None)
    args = parse(**values, auto_continue_train=False)
    assert (args.load, args.finetune) == (str(tmp_path / "base"), True)


def test_a_relative_load_is_looked_for_here_and_then_in_the_folder(parse, tmp_path: Path, monkeypatch):
    saved(tmp_path / "base", 100)
    assert parse(load="base").load == str(tmp_path / "base")
    monkeypatch.chdir(tmp_path)
    assert parse(load="base").load == "base"
