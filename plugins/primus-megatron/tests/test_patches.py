"""The replacements against what they replace: attention, norms, the scan of Mamba, Adam; all fit the engine."""

from __future__ import annotations

import importlib.metadata
import json
import math
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from primus_core.patches.registry import Registry
from primus_megatron.patches.records import primus_megatron_patches
from primus_megatron.plugin import primus_backends

# --- records ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry(
        next(iter(primus_backends())), primus_megatron_patches(), importlib.metadata.version("megatron-core")
    )


def test_the_cpu_is_a_condition(registry: Registry):
    on_cpu = {patch.name for patch in registry.patches if patch.when.platforms == ("cpu",)}
    assert on_cpu == {patch.name for patch in registry.patches if patch.name.startswith("megatron.cpu.")}
    assert all(patch.required and patch.reason for patch in registry.patches)


# --- the CPU in the place of a GPU ----------------------------------------------------------------------------------

_ON_CPU = """
import json
from types import SimpleNamespace
import importlib.metadata
from primus_core.patches.registry import Registry
from primus_megatron.patches.records import primus_megatron_patches
from primus_megatron.plugin import primus_backends
version = importlib.metadata.version("megatron-core")
registry = Registry(next(iter(primus_backends())), primus_megatron_patches(), version)
registry.apply("import", SimpleNamespace(platform="cpu", stage="pretrain", config={}))
import torch
x = torch.ones(2, device="cuda")
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event()
start.record(); end.record()
torch.cuda.manual_seed(7)
state = torch.cuda.get_rng_state()
first = torch.rand(3, device=torch.device("cuda:0"))
torch.cuda.set_rng_state(state)
again = torch.rand(3)
with torch.device("meta"):
    meta = torch.empty(3)
moved = [x, x.cuda(), x.to("cuda"), x.to(0), x.new_zeros(1, device="cuda:0"), torch.nn.Linear(2, 2).cuda().weight]
moved.append(torch.zeros(1, device=torch.cuda.current_device()))
print(json.dumps({
    "devices": [str(tensor.device) for tensor in moved],
    "meta": str(meta.device),
    "same": torch.equal(first, again),
    "milliseconds": start.elapsed_time(end),
    "memory": [torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated(), torch.cuda.mem_get_info()[1]],
    "type": isinstance(torch.cuda.FloatTensor, type) and torch.cuda.LongTensor([3]).tolist(),
    "available": torch.cuda.is_available(),
    "dtype": str(x.to(torch.float64).dtype),
    "compiled": torch.compile(len) is len and torch.compile(dynamic=True)(len) is len,
}))
"""


def test_cuda_means_the_cpu():
    done = subprocess.run([sys.executable, "-c", _ON_CPU], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert set(seen["devices"]) == {"cpu"}
    assert seen["meta"] == "meta"
    assert seen["same"] and seen["compiled"] and not seen["available"]
    assert seen["milliseconds"] >= 0
    current, highest, total = seen["memory"]
    assert 1e7 < current <= highest < total
    assert seen["type"] == [3]
    assert seen["dtype"] == "torch.float64"


# --- attention ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine() -> Any:
    """Megatron's groups for one rank in this process."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import get_cuda_rng_tracker

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    get_cuda_rng_tracker().reset()
    yield
    parallel_state.destroy_model_parallel()
    torch.distributed.destroy_process_group()


def config(**values: Any) -> Any:
    from megatron.core.transformer.transformer_config import TransformerConfig

    sizes = {"num_layers": 1, "hidden_size": 64, "num_attention_heads": 4, "num_query_groups": 4, "kv_channels": 16}
    plain = {"attention_dropout": 0.0, "masked_softmax_fusion": False, "attention_softmax_in_fp32": True}
    return TransformerConfig(**sizes | plain | values)


def attend(kind: str, q: Any, k: Any, v: Any, mask: Any = None, **values: Any) -> list[torch.Tensor]:
    """The output and the gradients of q, k and v, in float32."""
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from megatron.core.transformer.enums import AttnMaskType

    from primus_megatron.patches.attention import SDPAttention

    layer = {"engine": DotProductAttention, "ours": SDPAttention}[kind](
        config(**values), layer_number=1, attn_mask_type=AttnMaskType.causal, attention_type="self"
    )
    inputs = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
    out = layer(*inputs, mask, attn_mask_type=AttnMaskType.causal)
    (out.float() * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
    return [out.float(), *(tensor.grad.float() for tensor in inputs)]


def qkv(groups: int = 4, tokens: int = 32, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    return [torch.randn(tokens, 2, heads, 16, generator=random).to(dtype) for heads in (4, groups, groups)]


def hidden(documents: list[int], batch: int = 2) -> torch.Tensor:
    """True where a token does not see another: later ones, and those of other documents."""
    owner = torch.repeat_interleave(torch.arange(len(documents)), torch.tensor(documents))
    later = torch.ones(len(owner), len(owner), dtype=torch.bool).triu(1)
    return (later | (owner[:, None] != owner[None]))[None, None].expand(batch, 1, -1, -1)


@pytest.mark.parametrize(
    ("groups", "values", "mask"),
    [
        (4, {}, None),
        (2, {"num_query_groups": 2}, None),
        (1, {"num_query_groups": 1, "window_size": (5, 0)}, None),
        (4, {"window_size": (5, 0)}, None),
        (4, {"apply_query_key_layer_scaling": True}, None),
        (2, {"num_query_groups": 2}, [10, 3, 19]),
    ],
    ids=["plain", "grouped", "window of one group", "window", "layer scaling", "documents"],
)
def test_attention_is_that_of_the_engine(
    engine: Any, monkeypatch: pytest.MonkeyPatch, groups: int, values: Any, mask: Any
):
    ones = torch.ones  # the engine's masks ask for a GPU
    monkeypatch.setattr(torch, "ones", lambda *args, **kwargs: ones(*args, **{**kwargs, "device": "cpu"}))
    values |= {"sequence_parallel": True, "tensor_model_parallel_size": 2}  # takes no random state for dropout
    tensors, given = qkv(groups), hidden(mask) if mask else None
    kwargs = {"mask": given, **values}
    monkeypatch.setattr(
        "megatron.core.transformer.dot_product_attention.parallel_state.get_global_memory_buffer", Buffer
    )
    for ours, theirs in zip(attend("ours", *tensors, **kwargs), attend("engine", *tensors, **kwargs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=2e-6)


class Buffer:
    """The engine's own lies on the GPU."""

    def get_tensor(self, shape: Any, dtype: torch.dtype, name: str) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype)


def test_attention_in_half_precision(engine: Any):
    exact = attend("ours", *qkv())
    for half, full in zip(attend("ours", *qkv(dtype=torch.bfloat16)), exact, strict=True):
        torch.testing.assert_close(half, full, rtol=0.05, atol=0.05)


def test_packed_documents_equal_masked_ones(engine: Any):
    from megatron.core.packed_seq_params import PackedSeqParams
    from megatron.core.transformer.enums import AttnMaskType

    from primus_megatron.patches.attention import SDPAttention

    q, k, v = (tensor[:, :1] for tensor in qkv(2))
    layer = SDPAttention(config(num_query_groups=2), 1, AttnMaskType.causal, "self")
    ends = torch.tensor([0, 10, 13], dtype=torch.int32)
    packed = layer(q[:, 0], k[:, 0], v[:, 0], None, packed_seq_params=PackedSeqParams("thd", ends, ends))
    masked = layer(q, k, v, hidden([10, 3, 19], batch=1))
    torch.testing.assert_close(packed, masked[:, 0])


def test_latent_attention_has_values_of_another_width(engine: Any):
    from megatron.core.transformer.enums import AttnMaskType

    from primus_megatron.patches.attention import SDPAttention

    q, k, v = qkv()
    layer = SDPAttention(config(), 1, AttnMaskType.causal, "self", k_channels=16, v_channels=12)
    assert layer(q, k, v[..., :12], None).shape == (32, 2, 4 * 12)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"context_parallel_size": 2}, "context_parallel_size: more than 1 needs Transformer Engine"),
        ({"softmax_type": "learnable"}, "softmax_type: learnable"),
    ],
)
def test_what_attention_cannot_do_is_refused(engine: Any, values: Any, says: str):
    from megatron.core.transformer.enums import AttnMaskType

    from primus_core.errors import UserError
    from primus_megatron.patches.attention import SDPAttention

    with pytest.raises(UserError, match=says):
        SDPAttention(config(**values), 1, AttnMaskType.causal, "self")


# --- norms ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["RMSNorm", "LayerNorm"])
@pytest.mark.parametrize("centred", [False, True])
def test_norms_are_those_of_torch(kind: str, centred: bool):
    from primus_megatron.patches import norm

    settings = config(
        normalization=kind,
        layernorm_zero_centered_gamma=centred,
        use_cpu_initialization=True,
        sequence_parallel=True,
        tensor_model_parallel_size=2,
    )
    ours, theirs = getattr(norm, kind)(settings, 64, 1e-5), getattr(torch.nn, kind)(64, eps=1e-5)
    x = torch.randn(3, 64)
    assert torch.equal(ours(x), theirs(x))
    gamma = torch.randn(64)
    ours.weight.data.copy_(gamma - 1 if centred else gamma)
    theirs.weight.data.copy_(gamma)
    torch.testing.assert_close(ours(x), theirs(x))
    assert all(param.sequence_parallel for param in ours.parameters())


# --- Mamba ----------------------------------------------------------------------------------------------------------


def recurrence(x: Any, dt: Any, a: Any, b: Any, c: Any, state: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Token by token."""
    heads = x.size(2) // b.size(2)
    b, c = b.repeat_interleave(heads, 2), c.repeat_interleave(heads, 2)
    state = x.new_zeros(*x.shape[:1], *x.shape[2:], b.size(3)) if state is None else state
    outputs = []
    for t in range(x.size(1)):
        kept = (dt[:, t] * a).exp()[..., None, None] * state
        state = kept + torch.einsum("zh,zhp,zhn->zhpn", dt[:, t], x[:, t], b[:, t])
        outputs.append(torch.einsum("zhpn,zhn->zhp", state, c[:, t]))
    return torch.stack(outputs, 1), state


def scan_inputs(tokens: int, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(2)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    x, b, c = draw(2, tokens, 4, 8), draw(2, tokens, 2, 6), draw(2, tokens, 2, 6)
    dt, a = torch.nn.functional.softplus(draw(2, tokens, 4)), -draw(4).exp()
    return [tensor.to(dtype).requires_grad_() for tensor in (x, dt, a, b, c)]


@pytest.mark.parametrize("tokens", [1, 8, 37])
def test_scan_is_the_recurrence(tokens: int):
    from primus_megatron.patches.mamba import ssd

    given, same = scan_inputs(tokens), scan_inputs(tokens)
    y, state = ssd(*given, 8)
    expected, last = recurrence(*same)
    torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(state, last, rtol=1e-10, atol=1e-10)
    weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    ((y * weights).sum() + state.sin().sum()).backward()
    ((expected * weights).sum() + last.sin().sum()).backward()
    for ours, theirs in zip(given, same, strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-9)


def test_scan_goes_on_from_a_state():
    from primus_megatron.patches.mamba import ssd

    x, dt, a, b, c = scan_inputs(20)
    whole, last = ssd(x, dt, a, b, c, 8)
    first, state = ssd(x[:, :11], dt[:, :11], a, b[:, :11], c[:, :11], 8)
    second, end = ssd(x[:, 11:], dt[:, 11:], a, b[:, 11:], c[:, 11:], 8, state)
    torch.testing.assert_close(torch.cat([first, second], 1), whole)
    torch.testing.assert_close(end, last)


def test_scan_in_single_precision():
    from primus_megatron.patches.mamba import ssd

    exact, _ = recurrence(*scan_inputs(64))
    y, _ = ssd(*scan_inputs(64, torch.float32), 16)
    assert (y.double() - exact).abs().max() < 1e-5 * exact.abs().max()


def test_both_ways_through_the_mixer_are_one():
    """The convolution, the gate and the weight of the input, in one call and one by one."""
    from primus_megatron.patches.mamba import chunk_scan, split_conv1d_scan

    torch.manual_seed(3)
    z, x, b, c, dt = (torch.randn(2, 19, n) for n in (32, 32, 12, 12, 4))
    weight, bias = torch.randn(32 + 24, 4), torch.randn(32 + 24)
    a, d, dt_bias = -torch.rand(4), torch.randn(4), torch.randn(4)
    together = torch.cat([z, x, b, c, dt], -1)
    ours = split_conv1d_scan(together, weight, bias, dt_bias, a, d, 8, headdim=8, ngroups=2)

    xbc = torch.cat([x, b, c], -1).transpose(1, 2)
    padded = torch.nn.functional.pad(xbc, (3, 0))
    mixed = sum(padded[:, :, tap : tap + 19] * weight[:, tap, None] for tap in range(4)) + bias[:, None]
    x, b, c = torch.nn.functional.silu(mixed).transpose(1, 2).split([32, 12, 12], -1)
    y = chunk_scan(
        x.unflatten(-1, (4, 8)), dt, a, b.unflatten(-1, (2, 6)), c.unflatten(-1, (2, 6)), 8, D=d, dt_bias=dt_bias,
        dt_softplus=True,
    )  # fmt: skip
    torch.testing.assert_close(ours, y.flatten(2) * torch.nn.functional.silu(z), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("before", [False, True])
def test_gated_norm(before: bool):
    from primus_megatron.patches.mamba import GatedNorm

    norm = GatedNorm(8, eps=1e-5, group_size=4, norm_before_gate=before)
    x, z = torch.randn(3, 8), torch.randn(3, 8)
    gate = torch.nn.functional.silu(z)
    given = x if before else x * gate
    scale = torch.rsqrt(given.view(3, 2, 4).pow(2).mean(-1, keepdim=True) + 1e-5)
    normed = (given.view(3, 2, 4) * scale).view(3, 8)
    torch.testing.assert_close(norm(x, z), normed * gate if before else normed)


# --- Adam -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decoupled", [True, False])
def test_adam_is_that_of_torch(decoupled: bool):
    from primus_megatron.patches.optimizer import FusedAdam

    kinds = {True: torch.optim.AdamW, False: torch.optim.Adam}
    settings = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
    ours, theirs = ([torch.nn.Parameter(torch.linspace(-1, 1, n)) for n in (5, 3)] for _ in range(2))
    first = FusedAdam([{"params": ours[:1]}, {"params": ours[1:]}, {"params": []}], **settings, adam_w_mode=decoupled)
    second = kinds[decoupled](theirs, **settings)
    for step in range(5):
        for params in (ours, theirs):
            for index, param in enumerate(params):
                param.grad = torch.cos(param.detach() * (step + 2)) if (step, index) != (0, 1) or index == 0 else None
        first.step()
        second.step()
        if step == 0:
            continue
        assert torch.equal(ours[0], theirs[0])
    assert first.param_groups[0]["step"] == 5
    assert "step" not in first.param_groups[2]
    assert set(first.state[ours[0]]) == {"exp_avg", "exp_avg_sq"}


def test_adam_refuses_what_it_cannot_do():
    from primus_core.errors import UserError
    from primus_megatron.patches.optimizer import FusedAdam

    param = torch.nn.Parameter(torch.ones(1))
    with pytest.raises(UserError, match="Adam capturable, master_weights: needs Transformer Engine"):
        FusedAdam([param], capturable=True, master_weights=True)


# --- metrics --------------------------------------------------------------------------------------------------------


def test_meter_takes_pauses_out_and_means_over_steps():
    from primus_megatron.metrics import Meter

    now = iter([0.0, 10.0, 14.0, 20.0, 20.0])
    meter = Meter(lambda: next(now))
    for loss in (3.0, 5.0):
        meter.step(skipped=False)
        meter.add({"lm loss": torch.tensor(loss), "z loss": torch.tensor([1.0])})
    meter.step(skipped=True)
    with meter.pause():
        pass
    values = meter.read()
    assert values == {"loss": 4.0, "z loss": 1.0, "step_time": pytest.approx(16 / 3), "skipped": 1}
    assert math.isfinite(values["step_time"])


# --- the index of the data ----------------------------------------------------------------------------------------


def test_an_index_is_there_whole_or_not_at_all(tmp_path: Path):
    from primus_megatron.patches.index import atomic

    class Bad:
        def __reduce__(self):
            raise OSError("no space left")

    numpy = atomic(np)
    file = tmp_path / "a_index.npy"
    (tmp_path / f"a_index.npy.{socket.gethostname()}-99999999.new").write_text("of a run that was killed")
    with pytest.raises(OSError, match="no space left"):
        numpy.save(str(file), np.array([Bad()], dtype=object), allow_pickle=True)
    assert list(tmp_path.iterdir()) == []
    numpy.save(str(file), numpy.arange(3))
    assert [path.name for path in tmp_path.iterdir()] == ["a_index.npy"]
    assert numpy.load(file).tolist() == [0, 1, 2]
