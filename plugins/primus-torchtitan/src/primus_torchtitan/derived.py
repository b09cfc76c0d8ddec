"""What follows from an experiment's values. Light: neither torch nor the engine."""

from __future__ import annotations

from collections.abc import Mapping

from primus_core.config.experiment import Experiment


def environment(experiment: Experiment, platform: str) -> Mapping[str, str]:
    """Defaults for the workers: memory that grows in place, and on ROCm scratch memory that is kept."""
    if platform == "cpu":
        return {}
    if platform == "rocm":
        return {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "HSA_NO_SCRATCH_RECLAIM": "1"}
    return {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
