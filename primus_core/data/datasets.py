"""Text that is named instead of lying in files: registered datasets and those of the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from urllib.parse import parse_qsl

from primus_core.data.needs import need
from primus_core.errors import EnvironmentFault, UserError

HUB = "hf://"


@dataclass(frozen=True, slots=True)
class NamedText:
    """A dataset as the user named it, options included, and how to read its documents."""

    name: str
    read: Callable[[], Iterator[str]]


def parse(text: str) -> tuple[str, dict[str, str]]:
    """``name?option=value&...`` to the name and its options."""
    name, _, query = text.partition("?")
    return name, dict(parse_qsl(query, keep_blank_values=True))


def on_hub(text: str, key: str) -> NamedText:
    """``hf://owner/name?config=...&split=...`` as the ``datasets`` package streams it."""
    name, options = parse(text.removeprefix(HUB))
    if unknown := options.keys() - {"config", "split", "revision"}:
        raise UserError(f"{text}: unknown option {min(unknown)!r}; there are config, split, revision")
    need("datasets", "datasets")
    return NamedText(text, partial(_stream, text, name, key, **options))


def pydoc() -> Iterator[str]:
    """The topics of ``pydoc_data``, one document each, in the order of their names."""
    from pydoc_data.topics import topics

    for _, text in sorted(topics.items()):
        yield text


def _stream(
    text: str, name: str, key: str, config: str | None = None, split: str = "train", revision: str | None = None
) -> Iterator[str]:
    load_dataset = need("datasets").load_dataset
    try:
        rows = load_dataset(name, config, split=split, revision=revision, streaming=True)
        for number, row in enumerate(rows):
            if not isinstance(row.get(key), str):
                raise UserError(f"{text}: row {number}: no text under {key!r}; there are {', '.join(map(repr, row))}")
            yield row[key]
    except ConnectionError as error:
        raise EnvironmentFault(f"{text}: the hub cannot be reached: {error}") from error
    except (FileNotFoundError, ValueError) as error:
        raise UserError(f"{text}: {error}") from error
