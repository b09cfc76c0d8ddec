"""Run by torchrun on 4 ranks: prints how far reordered weights are from those of a single rank, as JSON."""

from __future__ import annotations

import json

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torchtitan.models.llama3 import TransformerModelArgs
from torchtitan.models.llama3.model.state_dict_adapter import Llama3StateDictAdapter

from primus_torchtitan.patches.engine import whole_heads

ARGS = TransformerModelArgs(dim=32, n_heads=4, n_kv_heads=2)
NAMES = ("layers.0.attention.wq.weight", "layers.0.attention.wk.weight")

dist.init_process_group("gloo")
torch.manual_seed(1)
plain = dict(zip(NAMES, (torch.randn(32, 32), torch.randn(16, 32)), strict=True))
wanted = Llama3StateDictAdapter(ARGS, None).to_hf(plain)
for name in ("_permute", "_reverse_permute"):
    setattr(Llama3StateDictAdapter, name, whole_heads(getattr(Llama3StateDictAdapter, name)))
adapter = Llama3StateDictAdapter(ARGS, None)
worst = {}
for layout, mesh, placements in (
    ("fsdp", init_device_mesh("cpu", (4,)), [Shard(0)]),
    ("hsdp", init_device_mesh("cpu", (2, 2)), [Replicate(), Shard(0)]),
    ("fsdp and tp", init_device_mesh("cpu", (2, 2)), [Shard(0), Shard(0)]),
):
    sharded = {name: distribute_tensor(weight, mesh, placements) for name, weight in plain.items()}
    there = adapter.to_hf(sharded)
    back = adapter.from_hf(there)
    pairs = [(there[name].full_tensor(), wanted[name]) for name in wanted]
    pairs += [(back[name].full_tensor(), plain[name]) for name in plain]
    worst[layout] = max(float((one - other).abs().max()) for one, other in pairs)
if dist.get_rank() == 0:
    print(json.dumps(worst))
dist.destroy_process_group()
