"""The documentation says what the code says, and its pages hang together."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_reference_is_as_the_code() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/make_reference.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}: run scripts/make_reference.py"


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    words = ["-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "primus_backends" in (tmp_path / "reference" / "hooks" / "index.html").read_text(encoding="utf-8")
