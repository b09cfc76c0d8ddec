"""Which names hold secrets."""

from __future__ import annotations

import re
from typing import Final

_SECRET: Final = re.compile(r"(?:^|[_\-.])(?:api|access)?(?:key|token|secret|password|passwd|credentials?)$", re.IGNORECASE)
_HARMLESS: Final = re.compile(
    r"^(?:key|token)$"
    r"|(?:^|[_\-.])(?:bos|eos|eod|pad|unk|mask|sep|cls|start|end|stop|special|next|per|image|video|audio|text|label|input|output"
    r"|column|sort|group|data|dataset|json|cache|query|prompt|response|messages?)[_\-.](?:key|token)$",
    re.IGNORECASE,
)


def looks_secret(name: str) -> bool:
    """Whether the value of a key or of an environment variable of this name must not be shown.

    ``api_key``, ``HF_TOKEN`` and ``db.password`` are secret; ``tokenizer_model``, ``key``, ``eos_token`` are not.
    """
    return bool(_SECRET.search(name)) and not _HARMLESS.search(name)
