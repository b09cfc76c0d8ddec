"""The plugin system: ``hookimpl`` and the records are all that a plugin needs."""

import pluggy

hookimpl = pluggy.HookimplMarker("primus")
