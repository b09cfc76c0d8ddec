"""Which platform this machine is."""

from __future__ import annotations

import os
from collections.abc import Mapping

from primus_core.errors import EnvironmentFault
from primus_core.plugins.info import Contribution, describe
from primus_core.plugins.manager import PluginManager
from primus_core.plugins.records import Device, Platform


def current(plugins: PluginManager, environ: Mapping[str, str] = os.environ) -> tuple[Platform, tuple[Device, ...]]:
    """The platform of the highest rank that finds devices, and these.

    ``PRIMUS_PLATFORM`` forces one, with devices or without. Raises ``UserError`` for one that nobody provides,
    ``EnvironmentFault`` when a detection fails or two plugins claim one name.
    """
    if forced := environ.get("PRIMUS_PLATFORM"):
        chosen = plugins.select("primus_platforms", forced)
        return chosen.record, _detect(chosen)
    candidates = sorted(plugins.named("primus_platforms").values(), key=lambda c: -c.record.rank)
    for candidate in candidates:
        if devices := _detect(candidate):
            return candidate.record, devices
    raise EnvironmentFault("no platform finds a device here; PRIMUS_PLATFORM=cpu takes the processor")


def _detect(platform: Contribution[Platform]) -> tuple[Device, ...]:
    try:
        return tuple(platform.load(platform.record.detect)())
    except EnvironmentFault:
        raise
    except Exception as error:
        raise EnvironmentFault(
            f"plugin {platform.plugin.name!r} ({platform.plugin.source}): cannot look for "
            f"{platform.record.summary}: {describe(error)}; PRIMUS_PLATFORM=cpu leaves that out"
        ) from error
