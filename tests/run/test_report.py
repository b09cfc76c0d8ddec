"""The page about a run, as text and in a real browser."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import socketserver
import subprocess
import threading

import pytest
from toy_runs import evaluated, started, steps, write_attempt

from primus_core.errors import UserError
from primus_core.run.compare import sides
from primus_core.run.report import compare, render

ABOUT = {
    "platform": "cpu",
    "git_commit": "a" * 40,
    "environment": {"HF_TOKEN": "***", "NCCL_DEBUG": "INFO"},
    "versions": {"torch": "2.13.0", "toy-engine": "1.0"},
    "data": {"text.bin": {"key": "data_path", "fingerprint": "3 bytes, sha256 abc"}},
}
ORIGINS = {
    "lr": {
        "value": 0.002,
        "origin": "toy.yaml:8:3",
        "layer": "experiment",
        "replaced": [{"value": 0.1, "origin": "base.yaml:1:5", "layer": "module defaults"}],
    },
    "steps": {"value": 8, "origin": "base.yaml:2:5", "layer": "module defaults"},
}
PATCHES = [
    {"name": "toy.norm", "status": "applied", "because": "known", "reason": "speed", "target": "toy:norm"},
    {"name": "toy.attention", "status": "skipped", "because": "platform is not rocm", "reason": "x", "target": "toy:a"},
]
ALL = {
    "grad_norm": 1.0,
    "lr": 1e-4,
    "step_time": lambda step: 0.5 + step % 3 / 10,
    "tokens_per_s": 4e6,
    "mfu": 0.42,
    "memory": 3 * 2**30,
}


@pytest.fixture
def run(tmp_path):
    first = [started(), *steps(1, 6, **ALL), evaluated(4, 1.25)]
    second = [started(), *steps(5, 8, **ALL), {**steps(9, 9)[0], "loss": None, "nonfinite": {"loss": "nan"}}]
    folder = tmp_path / "group/user/<toy> & co"
    write_attempt(folder / "attempts/0001", first, ABOUT, {"exit_code": 1, "root_cause": "rank 1 of 2 failed first"})
    cause = {"exit_code": 4, "root_cause": "rank 0 hangs\n  in <forward>", "seconds": 3.0}
    write_attempt(folder / "attempts/0002", second, ABOUT, cause, origins=ORIGINS, patches=PATCHES)
    (folder / "attempts/0002/git.diff").write_text("diff --git a b\n+x\n")
    return folder


def test_page_says_it_all(run):
    page = render(run)
    for part in (
        "&lt;toy&gt; &amp; co",
        "failed: exit code 4",
        "rank 0 hangs",
        "in &lt;forward&gt;",
        "toy.yaml:8:3",
        "base.yaml:1:5",
        "1 applied, 1 skipped",
        "platform is not rocm",
        "NCCL_DEBUG",
        "toy-engine",
        "3 bytes, sha256 abc",
        "diff --git a b",
        "attempt 2",
        "median 0.6 s",
        "nan",
    ):
        assert part in page
    titles = re.findall(r"<h2>([^<]+)</h2><svg", page)
    assert titles == [
        "Loss",
        "Gradient norm",
        "Learning rate",
        "Tokens per second",
        "Model FLOPs utilisation, %",
        "Memory, GiB",
        "Step time, s",
    ]


def test_page_needs_nothing_from_elsewhere(run):
    page = render(run)
    assert not re.findall(r"""\b(?:src|href)=|url\(|@import|fetch\(|XMLHttp""", page)
    assert set(re.findall(r"https?://[^\s\"<]+", page)) == {"http://www.w3.org/2000/svg"}


def test_page_of_an_attempt_without_a_step(tmp_path):
    write_attempt(tmp_path / "attempts/0001")
    assert "killed: starting" in render(tmp_path / "attempts/0001")
    with pytest.raises(UserError, match="is not the folder of a run"):
        render(tmp_path / "attempts")


def test_page_of_two_runs(run):
    page = compare(sides([run / "attempts/0001", run / "attempts/0002"]))
    assert "Step time, s · 0001" in page
    assert "Configuration" in page
    assert "toy.yaml:8:3" in page


@pytest.fixture
def browser():
    found = shutil.which("chromium")
    if found is None:
        if os.environ.get("CI") == "true":
            pytest.fail("chromium is missing: scripts/system_packages.sh installs it")
        pytest.skip("chromium is not installed")
    return found


class Proxy(socketserver.ThreadingTCPServer):
    """Where the browser would go for anything that is not on the page; notes what it asks for."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self):
        self.asked = []
        super().__init__(("127.0.0.1", 0), None)

    def finish_request(self, request, client_address):
        self.asked.append(request.recv(4096).split(b"\r\n")[0].decode(errors="replace"))


def look(browser, tmp_path, page, *words, script=""):
    """The page's DOM after its scripts and ``script``, and the hosts that the browser asked for."""
    file = tmp_path / "page.html"
    file.write_text(page.replace("</body>", f"<script>{script}</script></body>"))
    with Proxy() as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        command = [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            f"--proxy-server=http://127.0.0.1:{proxy.server_address[1]}",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--window-size=1400,1600",
            *words,
            file.as_uri(),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        proxy.shutdown()
    return done.stdout, proxy.asked


def strangers(asked):
    """What was asked for, but for the browser's own calls home."""
    return [line for line in asked if not re.search(r"[/. ](google\.com|googleapis\.com|gvt1\.com)[:/ ]", line)]


SCRIPT = """
const sections = [...document.querySelectorAll(".charts section")]
document.querySelectorAll("details").forEach(each => each.open = true)
const box = document.querySelector('input[data-for="configuration"]')
box.value = "base LR"
box.dispatchEvent(new Event("input"))
const svg = sections[0].querySelector("svg"), place = svg.getBoundingClientRect()
svg.dispatchEvent(new PointerEvent("pointermove", {clientX: place.left + place.width * .5, clientY: place.top + 9}))
document.body.dataset.seen = JSON.stringify({
  charts: sections.length,
  small: sections.filter(each => each.getBoundingClientRect().width < 300).length,
  shown: [...document.querySelectorAll("#configuration tbody tr")].filter(row => !row.hidden).length,
  tips: [...document.querySelectorAll(".tip")].map(tip => tip.innerText.split("\\n")[0]),
  inside: [...document.querySelectorAll(".tip")].every(tip => {
    const inner = tip.getBoundingClientRect(), outer = tip.parentElement.getBoundingClientRect()
    return inner.top >= outer.top && inner.left >= outer.left && inner.right <= outer.right
  }),
  wide: document.documentElement.scrollWidth > document.documentElement.clientWidth,
  paper: getComputedStyle(document.body).backgroundColor,
})
"""


@pytest.mark.slow
@pytest.mark.browser
def test_page_in_a_browser(run, browser, tmp_path):
    dom, asked = look(browser, tmp_path, render(run), "--dump-dom", script=SCRIPT)
    seen = json.loads(html.unescape(re.search(r'data-seen="([^"]+)"', dom)[1]))
    assert seen["charts"] == 7
    assert seen["small"] == 0
    assert seen["shown"] == 1
    assert seen["tips"] == ["step 4"] * 6 or seen["tips"] == ["step 5"] * 6
    assert seen["inside"]
    assert not seen["wide"]
    assert not strangers(asked)
    look(browser, tmp_path, render(run), f"--screenshot={tmp_path / 'page.png'}")
    picture = (tmp_path / "page.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 20_000


@pytest.mark.slow
@pytest.mark.browser
def test_proxy_sees_what_a_page_asks_for(browser, tmp_path):
    _, asked = look(browser, tmp_path, '<img src="http://example.test/x.png"></body>', "--dump-dom")
    assert strangers(asked) == ["GET http://example.test/x.png HTTP/1.1"]


@pytest.mark.slow
@pytest.mark.browser
def test_dark_page_in_a_browser(run, browser, tmp_path):
    dark = "--blink-settings=preferredColorScheme=0"
    dom, _ = look(browser, tmp_path, render(run), "--dump-dom", dark, script=SCRIPT)
    assert "rgb(20, 23, 27)" in dom
