"""Which devices the ``*_VISIBLE_DEVICES`` variables leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def selection(words: str | None, uuids: Sequence[str]) -> tuple[int, ...]:
    """Positions of the devices that remain, in the order asked for.

    ``words`` is the variable's value: indices or beginnings of UUIDs. As in the vendors' runtimes, an unset variable
    leaves all, and the list ends at the first entry that names no device (so ``-1`` and an empty one leave none).
    """
    if words is None:
        return tuple(range(len(uuids)))
    chosen: list[int] = []
    for word in map(str.strip, words.split(",")):
        if word.isdecimal():
            matches = [int(word)] if int(word) < len(uuids) else []
        else:
            matches = [index for index, uuid in enumerate(uuids) if word and uuid.lower().startswith(word.lower())]
        if len(matches) != 1:
            break
        chosen += matches
    return tuple(chosen)


def pick[T](items: Sequence[T], uuids: Sequence[str], environ: Mapping[str, str], *variables: str) -> list[T]:
    """``items`` as far as the first of ``variables`` that is set leaves them."""
    words = next((environ[name] for name in variables if name in environ), None)
    return [items[index] for index in selection(words, uuids)]
