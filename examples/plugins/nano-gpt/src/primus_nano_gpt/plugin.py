"""What this plugin contributes. Imports neither torch nor the engine."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from primus_core.plugins import hookimpl
from primus_core.plugins.records import Backend

_HERE = Path(__file__).parent


@hookimpl
def primus_backends() -> Iterable[Backend]:
    yield Backend(
        name="nano-gpt",
        summary="nano-gpt: a small GPT in plain PyTorch",
        engine="primus-nano-gpt",
        engine_versions=">=0.1,<0.2",
        trainer="primus_nano_gpt.train:train",
        schemas=_HERE / "schemas",
        presets=_HERE / "presets",
        examples=_HERE / "examples",
        requires={"torch": ">=2.6"},
        headline={"layers": "layers", "width": "width"},
        install="pip install primus-nano-gpt",
    )
