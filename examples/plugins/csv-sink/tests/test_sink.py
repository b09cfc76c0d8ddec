"""The table, and that primus knows it."""

from pathlib import Path

from primus_core.testing.suites import MakeProject
from primus_csv_sink import Table


def test_only_steps_make_rows(tmp_path: Path) -> None:
    table = Table(tmp_path / "x.csv", ["step", "loss", "lr"])
    table.event({"event": "note", "message": "hello"})
    table.event({"event": "step", "step": 1, "loss": 4.5, "tokens": 8})
    table.close()
    assert (tmp_path / "x.csv").read_text().splitlines() == ["step,loss,lr", "1,4.5,"]


def test_it_is_found(primus_project: MakeProject) -> None:
    assert "A table in the attempt's folder" in primus_project({}).run("plugins", "show", "csv").ok().out
