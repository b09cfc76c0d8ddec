"""What backends can do, feature by feature: to be shown, to be compared, and to refuse what is not there.

A backend names a tuple of ``Capability`` records. An experiment that asks for an unsupported feature, or for one that
does not work on its platform, is refused with the record's note at the place of what asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from primus_core.config.experiment import CheckContext, Experiment
from primus_core.config.schema import Schema
from primus_core.errors import EnvironmentFault, Problem
from primus_core.plugins.records import Backend, Capability, load

FEATURES: Final[Mapping[str, str]] = {
    "pretrain": "Pretraining",
    "sft": "Supervised fine-tuning",
    "lora": "LoRA",
    "packing": "Packing of sequences",
    "dense": "Dense decoder models",
    "moe": "Mixture of experts",
    "mla": "Multi-head latent attention",
    "mtp": "Multi-token prediction",
    "hybrid": "Hybrid recurrent-attention models",
    "data_parallel": "Data parallelism",
    "fsdp": "Fully sharded data parallelism",
    "hsdp": "Hybrid sharded data parallelism",
    "tensor_parallel": "Tensor parallelism",
    "sequence_parallel": "Sequence parallelism",
    "context_parallel": "Context parallelism",
    "pipeline_parallel": "Pipeline parallelism",
    "expert_parallel": "Expert parallelism",
    "recompute": "Activation recomputation",
    "compile": "Compilation of the model",
    "bf16": "BF16",
    "fp8": "FP8",
    "mxfp8": "MXFP8",
    "fp4": "FP4",
    "validation": "Validation",
    "resume": "Exact resume",
    "reshard": "Resume on other parallel sizes",
    "hf_import": "Weights from Hugging Face format",
    "hf_export": "Weights to Hugging Face format",
    "text_data": "Training on text",
    "prepared_data": "Training on tokens of primus data prepare",
    "mock_data": "Training on made-up data",
    "cpu": "Training on CPUs",
    "multi_node": "Several machines",
}
"""The features that backends are compared by, with their titles. A backend may add its own, with a ``title``."""


def of(backend: Backend, version: str | None = None) -> tuple[Capability, ...]:
    """What a backend declares for an engine version (None: whatever the version), in the order of ``FEATURES``.

    Its own features come last. Raises ``EnvironmentFault`` for a feature that has neither a title here nor its own.
    """
    declared: tuple[Capability, ...] = load(backend.capabilities) if backend.capabilities else ()
    for each in declared:
        if each.feature not in FEATURES and not each.title:
            raise EnvironmentFault(f"backend {backend.name!r}: the feature {each.feature!r} of its own needs a title")
    order = list(FEATURES)
    own = len(order)
    found = [each for each in declared if _is_true_for(each, version)]
    return tuple(sorted(found, key=lambda each: order.index(each.feature) if each.feature in FEATURES else own))


def title(capability: Capability) -> str:
    """What a feature is called."""
    return FEATURES.get(capability.feature) or capability.title


def refusals(experiment: Experiment, backend: Backend, schema: Schema, context: CheckContext) -> Iterator[Problem]:
    """An error for each feature that the experiment asks for and cannot have, at what asks for it."""
    for capability in of(backend, context.installed.get(backend.engine)):
        if not (why := _why_not(capability, context)):
            continue
        for wish in capability.asked:
            if all(_asks(experiment.get(key), wanted, schema, key) for key, wanted in wish.items()):
                key = next(iter(wish))
                yield Problem(experiment.origin_of(key), f"{key}: {why}")
                break


def _why_not(capability: Capability, context: CheckContext) -> str:
    """Why this feature cannot be had here; nothing where it can."""
    if capability.support == "unsupported":
        return capability.note
    if capability.platforms and context.platform not in (None, *capability.platforms):
        return f"{capability.note} (this is {context.platform})"
    if capability.needs and context.installed and not _is_installed(capability.needs, context):
        return capability.note
    return ""


def _is_installed(distribution: str, context: CheckContext) -> bool:
    """Builds for different hardware add to the name: ``transformer-engine-cu13``."""
    return any(name.lower().replace("_", "-").startswith(distribution) for name in context.installed)


def _is_true_for(capability: Capability, version: str | None) -> bool:
    if not capability.engine or version is None:
        return True
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(capability.engine).contains(version, prereleases=True)


def _asks(value: Any, wanted: Any, schema: Schema, key: str) -> bool:
    if value is None:
        return False
    if wanted == "any":
        known = schema.keys.get(key)
        return bool(value != (known.default if known else None))
    if isinstance(wanted, str) and wanted.startswith(">"):
        return isinstance(value, int | float) and value > float(wanted[1:])
    return bool(value == wanted)
