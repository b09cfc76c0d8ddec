"""Places in modules: find them, see what they hold, put something else there, put it back."""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

_LEDGER = "__primus_patches__"
_ABSENT: Any = object()


class TargetMissing(Exception):
    """The module or attribute that a reference names does not exist."""


@dataclass(frozen=True, slots=True)
class Place:
    """An attribute of a module or class. ``held`` is what its namespace holds: for static and class methods the
    descriptor, absent where the attribute is inherited.
    """

    module: ModuleType
    owner: Any
    name: str
    path: str
    held: Any
    value: Any

    @classmethod
    def find(cls, ref: str) -> Place:
        """Import the module of ``module:attribute.path`` and look the attribute up.

        Raises ``TargetMissing`` with near names; an error inside the imported module passes through.
        """
        module_name, _, path = ref.partition(":")
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
                raise TargetMissing(f"there is no module {error.name}") from None
            raise
        *owners, name = path.split(".")
        owner: Any = module
        for part in owners:
            owner = _get(owner, part)
        value = _get(owner, name)
        held = vars(owner).get(name, _ABSENT) if hasattr(owner, "__dict__") else _ABSENT
        if isinstance(owner, type):
            value = inspect.getattr_static(owner, name)
            value = value.__func__ if isinstance(value, staticmethod | classmethod) else value
        return cls(module, owner, name, path, held, value)

    def put(self, value: Any) -> None:
        """Hold ``value`` from now on; a static or class method stays one."""
        kind = type(inspect.getattr_static(self.owner, self.name, None)) if isinstance(self.owner, type) else None
        setattr(self.owner, self.name, kind(value) if kind in (staticmethod, classmethod) else value)

    def restore(self) -> None:
        """Hold again what was held when the place was found."""
        if self.held is _ABSENT:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.held)


@dataclass(slots=True)
class Ledger:
    """What was done to one target in this process; it lives in the target's module and goes with it."""

    original: Any
    patches: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, place: Place) -> Ledger:
        pages: dict[str, Ledger] = vars(place.module).setdefault(_LEDGER, {})
        return pages.setdefault(place.path, cls(place.value))


def loaded(ref: str) -> bool:
    """Whether the module of a reference is imported already."""
    return ref.partition(":")[0] in sys.modules


def holders(value: Any, package: str) -> Iterator[str]:
    """References to all loaded modules of a package that hold this very function or class under some name."""
    if not callable(value):
        return
    for module_name, module in sorted(sys.modules.items()):
        if module_name == package or module_name.startswith(f"{package}."):
            yield from (f"{module_name}:{name}" for name, held in list(vars(module).items()) if held is value)


def _get(owner: Any, name: str) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError:
        kind = "module" if isinstance(owner, ModuleType) else "class" if isinstance(owner, type) else "object"
        near = difflib.get_close_matches(name, dir(owner))
        hint = f"; near names: {', '.join(near)}" if near else ""
        raise TargetMissing(f"{kind} {getattr(owner, '__name__', owner)} has no {name}{hint}") from None
