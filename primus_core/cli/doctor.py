"""``primus doctor``: one block of text that answers what can run on this machine, and why not."""

from __future__ import annotations

import json
import platform as host
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from primus_core.cli.context import State, pass_state
from primus_core.cli.text import columns
from primus_core.errors import EnvironmentFault, ExitCode
from primus_core.platforms.detect import current
from primus_core.plugins.manager import version_of
from primus_core.plugins.readiness import Need, Readiness, readiness
from primus_core.plugins.records import Device
from primus_core.secrets import MASK, is_secret_variable, scrub, secret_values

_GIB = 2**30


@click.command()
@click.option("--backend", "wanted", metavar="NAME", help="Ask about this backend only.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@pass_state
def doctor(state: State, wanted: str | None, as_json: bool) -> int:
    """Say what is installed, which backends can run on this machine, and why others cannot.

    Exit code 3 if a plugin is broken or two of them are in conflict, if the hardware cannot be looked at, or if
    none of the installed backends (or not the one asked for) can run here; else 0.
    """
    facts = _facts(state, wanted)
    text = json.dumps(facts, indent=1) if as_json else _text(facts)
    home = str(Path.home())
    click.echo(scrub(text.replace(home, "~") if home != "/" else text, secret_values(state.environ)))
    return ExitCode.ENVIRONMENT if facts["problems"] else ExitCode.DONE


def _facts(state: State, wanted: str | None) -> dict[str, Any]:
    plugins = state.plugins
    problems: list[str] = []
    devices: tuple[Device, ...] = ()
    name = None
    try:
        platform, devices = current(plugins, state.environ)
        name = platform.name
    except EnvironmentFault as error:
        problems.append(str(error))
    problems += plugins.conflicts()
    if wanted is not None:
        backends = [plugins.backend(wanted)]
    else:
        found = (contribution.record for contribution in plugins.contributions("primus_backends"))
        backends = [backend for backend in found if not backend.tool]
    checked = [readiness(backend, name) for backend in backends]
    problems += [f"plugin {info.name!r} ({info.source}) is broken: {info.error}" for info in plugins.broken]
    if checked and all(each.reasons for each in checked):
        problems.append("no installed backend can run here" if wanted is None else f"{wanted} cannot run here")
    return {
        "primus": version_of("primus-core"),
        "python": host.python_version(),
        "system": host.platform(),
        "environment": dict(_environment(state.environ)),
        "platform": name,
        "devices": [_device(device) for device in devices],
        "plugins": [
            {"name": info.name, "distribution": info.distribution, "version": info.version, "status": info.status}
            for info in plugins.infos
        ],
        "backends": [_backend(each) for each in checked],
        "problems": problems,
    }


def _environment(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Variables that change what primus does or sees."""
    for name, value in sorted(environ.items()):
        if name.startswith("PRIMUS_") or name.endswith("_VISIBLE_DEVICES"):
            yield name, MASK if is_secret_variable(name) else value


def _device(device: Device) -> dict[str, Any]:
    return {"name": device.name, "arch": device.arch, "memory": device.memory, "peak_flops": dict(device.peak_flops)}


def _backend(each: Readiness) -> dict[str, Any]:
    backend = each.backend
    return {
        "name": backend.name,
        "can_run": not each.reasons,
        "because": list(each.reasons),
        "install": backend.install if each.fixable else "",
        "needs": [_need(need) for need in (each.engine, *each.requires)],
        "optional": [_need(need) | {"for": backend.optional[need.distribution]} for need in each.optional],
    }


def _need(need: Need) -> dict[str, str]:
    return {"distribution": need.distribution, "installed": need.installed, "tested": need.tested}


def _text(facts: Mapping[str, Any]) -> str:
    lines = [f"primus {facts['primus']}, Python {facts['python']}, {facts['system']}"]
    lines += [f"{name}={value}" for name, value in facts["environment"].items()]
    lines += ["", f"platform: {facts['platform'] or 'unknown'}", *_devices(facts["devices"])]
    lines += ["", "plugins"]
    lines.append(
        columns(((p["name"], f"{p['distribution']} {p['version']}", p["status"]) for p in facts["plugins"]), "  ")
    )
    lines += ["", "backends" if facts["backends"] else "backends: none is installed"]
    for backend in facts["backends"]:
        lines += _backend_lines(backend)
    lines += ["", *(f"problem: {problem}" for problem in facts["problems"])] if facts["problems"] else []
    return "\n".join(lines)


def _devices(devices: list[dict[str, Any]]) -> Iterator[str]:
    rows = [
        f"{device['name']} ({device['arch']})" + (f", {device['memory'] / _GIB:.0f} GiB" if device["memory"] else "")
        for device in devices
    ]
    for row in dict.fromkeys(rows):
        yield f"  {rows.count(row)} x {row}"


def _backend_lines(backend: Mapping[str, Any]) -> Iterator[str]:
    yield f"  {backend['name']}: {'can run here' if backend['can_run'] else 'cannot run here'}"
    yield from (f"    because {reason}" for reason in backend["because"])
    if backend["install"]:
        yield f"    install with: {backend['install']}"
    rows = [
        (need["distribution"], need["installed"] or "not installed", f"tested with {need['tested']}")
        for need in backend["needs"]
    ]
    rows += [
        (o["distribution"], o["installed"] or "not installed", f"optional: {o['for']}") for o in backend["optional"]
    ]
    yield columns(rows, "    ")
