"""``python -m primus_core.convert.worker FOLDER``: one conversion, as ``order.json`` there asks for.

Writes ``report.json``, or ``error.json`` with the message and the exit code of an error that the user can mend.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from primus_core.convert.order import Order, Report
from primus_core.errors import PrimusError
from primus_core.plugins.manager import PluginManager
from primus_core.plugins.records import load


def main(folder: Path) -> int:
    order = Order.read((folder / "order.json").read_text(encoding="utf-8"))
    try:
        converter = PluginManager.load().backend(order.backend).converter
        assert converter is not None
        report: Report = load(converter.convert)(order)
    except PrimusError as error:
        content = {"message": str(error), "exit_code": int(error.exit_code)}
        (folder / "error.json").write_text(json.dumps(content), encoding="utf-8")
        return content["exit_code"]  # type: ignore[return-value]
    (folder / "report.json").write_text(report.text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
