"""The code of hybrid models for ``trust_remote_code``: these files and the kernels, laid beside the weights."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent

CODE = (
    _HERE / "configuration_zebra_llama.py",
    _HERE / "modeling_zebra_llama.py",
    _HERE.parent / "kernels/delta_rule.py",
    _HERE.parent / "kernels/ssd.py",
)

AUTO_MAP = {
    "AutoConfig": "configuration_zebra_llama.ZebraLlamaConfig",
    "AutoModelForCausalLM": "modeling_zebra_llama.ZebraLlamaForCausalLM",
}
