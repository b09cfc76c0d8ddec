"""What follows from an experiment's values. Light: neither torch nor the engine."""

from __future__ import annotations

from collections.abc import Mapping

from primus_core.config.experiment import Experiment


def environment(experiment: Experiment, platform: str) -> Mapping[str, str]:
    """Defaults for the workers: on GPUs, memory segments that grow in place, so that less of it is lost in gaps."""
    return {} if platform == "cpu" else {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
