"""The matrix's page in a headless Chromium: it is drawn, wide and narrow, light and dark, and its cells answer."""

from __future__ import annotations

import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from wf_core.cli import main

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --virtual-time-budget=5000"
).split()
DARK = ("--blink-settings=preferredColorScheme=0",)
"""0 is "dark" in the renderer's settings; the default of a headless browser is light."""
MEASURE = (
    "<script>parent.postMessage([document.documentElement.scrollWidth, innerWidth], '*');</script></body>"
)
FRAME = """<!doctype html><body><iframe src="changed.html{fragment}" width="{width}" height="{height}"></iframe><script>
addEventListener("message", (event) => {{ document.body.dataset.width = event.data.join("/"); }});</script></body>"""
"""A window is never narrower than 500 px, a frame is as narrow as one likes."""
CLICK = "<script>document.querySelectorAll('tr.f')[{row}].cells[{column}].click();</script></body>"

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("page") / "matrix.html"
    with pytest.raises(SystemExit) as end:
        main(["matrix", "wan2.1-t2v-1.3b", "--device", "h200", "--html", str(target)])
    assert end.value.code == 0
    return target


def browse(folder: Path, *arguments: str) -> str:
    """Runs the browser once, with a profile of its own; its standard output."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={folder / 'profile'}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def picture(folder: Path, page: Path, width: int, height: int, *flags: str, fragment: str = "") -> np.ndarray:
    """What is drawn, as ``[H, W, 3]`` uint8."""
    target = folder / "shot.png"
    browse(
        folder,
        f"--screenshot={target}",
        f"--window-size={width},{height}",
        *flags,
        f"{page.as_uri()}{fragment}",
    )
    with Image.open(target) as image:
        return np.asarray(image.convert("RGB"))


def document(folder: Path, page: Path, *, fragment: str = "", more: str = "") -> str:
    """The document after its script ran, and after ``more`` in place of the end of its body."""
    changed = folder / "changed.html"
    changed.write_text(page.read_text().replace("</body>", more or "</body>"))
    return browse(folder, "--window-size=1280,900", "--dump-dom", f"{changed.as_uri()}{fragment}")


def detail(dom: str) -> str:
    """The text of the panel that explains."""
    found = re.search(r'<aside id="detail".*?</aside>', dom, re.DOTALL)
    assert found is not None
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", found[0])).split())


@pytest.mark.parametrize("flags", [(), DARK], ids=["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_it_is_drawn(page: Path, tmp_path: Path, width: int, height: int, flags: tuple[str, ...]) -> None:
    seen = picture(tmp_path, page, width, height, *flags)
    assert seen.shape == (height, width, 3)
    background = int(np.median(seen.mean(axis=2)))
    assert background < 60 if flags else background > 200
    assert len(np.unique(seen.reshape(-1, 3), axis=0)) > 100
    # Something is drawn everywhere: no band of a tenth of the height is one colour.
    for band in np.array_split(seen, 10):
        assert band.std() > 2


@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_it_is_not_wider_than_the_window(page: Path, tmp_path: Path, width: int, height: int) -> None:
    (tmp_path / "changed.html").write_text(page.read_text().replace("</body>", MEASURE))
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.format(width=width, height=height, fragment="#teacache+cuda-graph"))
    dom = browse(tmp_path, "--window-size=1600,1000", "--dump-dom", frame.as_uri())
    found = re.search(r'data-width="(\d+)/(\d+)"', dom)
    assert found is not None
    content, window = map(int, found.groups())
    assert (content, window) == (width, width)


@pytest.mark.parametrize("fragment", ["#teacache+cuda-graph", "#cuda_graph+teacache"])
def test_an_address_opens_a_pair_with_its_reasons(page: Path, tmp_path: Path, fragment: str) -> None:
    told = detail(document(tmp_path, page, fragment=fragment))
    assert "refused together" in told
    assert "WF-C010 A replayed graph freezes the Python decision" in told
    assert "cuda-graph cannot be activated" in told
    assert "wf why " in told


def test_an_address_opens_a_feature(page: Path, tmp_path: Path) -> None:
    told = detail(document(tmp_path, page, fragment="#ulysses"))
    assert "refused alone here, legal with 2 processes" in told
    assert "WF-X002" in told


def test_a_click_on_a_cell_tells_its_reason(page: Path, tmp_path: Path) -> None:
    told = detail(document(tmp_path, page, more=CLICK.format(row=0, column=2)))
    assert "one at a time" in told
    assert "WF-R004" in told
    told = detail(document(tmp_path, page, more=CLICK.format(row=9, column=0)))
    assert told.startswith("close sage3")
    assert "WF-A041" in told


def test_arrow_keys_move_and_enter_opens(page: Path, tmp_path: Path) -> None:
    keys = (
        "<script>{const grid = document.getElementById('grid'); grid.querySelector(\"[tabindex='0']\").focus();"
        "for (const key of ['ArrowDown', 'ArrowDown', 'Enter'])"
        " document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}));}</script></body>"
    )
    told = detail(document(tmp_path, page, more=keys))
    assert told.startswith("close flash2 + cudnn")


def test_filters_hide_rows_and_say_when_nothing_is_left(page: Path, tmp_path: Path) -> None:
    search = (
        "<script>{const box = document.getElementById('search'); box.value = 'TEA';"
        "box.dispatchEvent(new Event('input', {bubbles: true}));"
        "document.body.dataset.rows = [...document.querySelectorAll('tr.f:not([hidden]) th')].map(t => t.textContent);"
        "box.value = 'nothing'; box.dispatchEvent(new Event('input', {bubbles: true}));"
        "document.body.dataset.none = document.getElementById('none').hidden;}</script></body>"
    )
    dom = document(tmp_path, page, more=search)
    assert 'data-rows="teacache"' in dom
    assert 'data-none="false"' in dom
