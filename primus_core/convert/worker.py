"""One conversion, in the process that is started for it."""

from __future__ import annotations

from primus_core.convert.order import Order, Report
from primus_core.plugins.manager import PluginManager
from primus_core.plugins.records import load


def convert(text: str) -> str:
    """From an order to a report, both as text."""
    order = Order.read(text)
    converter = PluginManager.load().backend(order.backend).converter
    assert converter is not None
    report: Report = load(converter.convert)(order)
    return report.text()
