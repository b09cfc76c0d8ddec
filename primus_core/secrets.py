"""Values that must never be printed, recorded, or put on a command line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

MASK = "***"

_VARIABLE = re.compile(r"KEY|TOKEN(?!IZ)|SECRET|PASSWORD", re.IGNORECASE)
_KEY = re.compile(
    r"(?:^|[_-])(?:(?:api|access|private|secret|auth)[_-]?key|apikey|token|secret|password|passwd|credentials?)$",
    re.IGNORECASE,
)
_HARMLESS = re.compile(
    r"^token$|(?:^|[_-])(?:bos|eos|eod|pad|unk|mask|sep|cls|start|end|stop|special|next|per|image|video|audio|text"
    r"|label|input|output)[_-]token$",
    re.IGNORECASE,
)
_ASSIGNMENT = re.compile(
    r"""^(?P<head>[+\- ]?[ \t{-]*(?:export )?["']?(?P<name>\w+)["']? ?[:=] ?)"""
    r"""(?:"[^"\n]*"|'[^'\n]*'|[^\s#{\[("'][^\n#(\[]*$)""",
    re.MULTILINE,
)
_SHORTEST = 6


def is_secret_variable(name: str) -> bool:
    """Whether an environment variable of this name holds a secret."""
    return _VARIABLE.search(name) is not None


def is_secret_key(name: str) -> bool:
    """Whether a configuration key holds a secret; only the last part of a dotted key counts.

    Stricter than for variables: ``tokenizer_model``, ``key_dim``, ``num_tokens`` or ``eos_token`` are not secrets.
    """
    last = name.rpartition(".")[2]
    return _KEY.search(last) is not None and _HARMLESS.search(last) is None


def secret_values(environ: Mapping[str, str]) -> set[str]:
    """The secrets that an environment holds."""
    return {value for name, value in environ.items() if is_secret_variable(name)}


def scrub(text: str, secrets: Iterable[str]) -> str:
    """``text`` without the given values. Very short ones are left: they would hit innocent text."""
    for secret in sorted({value for value in secrets if len(value) >= _SHORTEST}, key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


def mask_assignments(text: str) -> str:
    """A file or a diff with ``api_key: value`` and ``NAME_TOKEN=value`` masked, whatever the value."""

    def mask(match: re.Match[str]) -> str:
        name = match["name"]
        secret = is_secret_key(name) or (name.isupper() and is_secret_variable(name))
        return f"{match['head']}{MASK}" if secret else match[0]

    return _ASSIGNMENT.sub(mask, text)


def mask_words(words: Iterable[str]) -> tuple[str, ...]:
    """A command line without its secrets: ``key=value``, ``--key value``, ``--key=value`` and ``--env NAME=value``."""
    masked: list[str] = []
    hide_next = False
    for word in words:
        name, equals, _ = word.lstrip("-").partition("=")
        secret = is_secret_key(name) or (name.isupper() and is_secret_variable(name))
        if hide_next and not word.startswith("--"):
            masked.append(MASK)
        elif secret and equals:
            masked.append(f"{word[: word.index('=')]}={MASK}")
        elif word.startswith("--env=") and is_secret_variable(word[6:].partition("=")[0]):
            masked.append(f"--env={word[6:].partition('=')[0]}={MASK}")
        else:
            masked.append(word)
        hide_next = secret and not equals and word.startswith("--")
    return tuple(masked)
