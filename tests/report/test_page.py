"""The page in a real browser: it opens from disk, without network and without console errors, and does what it says."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from oattn_hub.report import GroupResult, Report

playwright = pytest.importorskip("playwright.sync_api")


def _chromium() -> str | None:
    return os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    executable = _chromium()
    if executable is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no chromium; install Debian's chromium")
    with playwright.sync_playwright() as driver:
        # software WebGL, so that the rotatable map is drawn on a machine without a graphics card
        options = ["--no-sandbox", "--enable-unsafe-swiftshader", "--ignore-gpu-blocklist"]
        opened = driver.chromium.launch(executable_path=executable, args=options)
        yield opened
        opened.close()


@dataclass
class Visit:
    """One open page and everything that went wrong on it."""

    page: object
    problems: list[str] = field(default_factory=list)


@pytest.fixture
def visit(browser: object) -> Iterator[Callable[..., Visit]]:
    contexts = []

    def open_page(path: Path, fragment: str = "", width: int = 1280, scheme: str = "light") -> Visit:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
        contexts.append(context)
        seen = Visit(context.new_page())
        seen.page.on("pageerror", lambda error: seen.problems.append(str(error)))
        seen.page.on("console", lambda message: seen.problems.append(message.text) if message.type == "error" else None)
        seen.page.on("request", lambda request: seen.problems.append(request.url) if _is_remote(request.url) else None)
        seen.page.goto(path.as_uri() + fragment)
        seen.page.wait_for_selector("body[data-ready]", timeout=60_000)
        return seen

    yield open_page
    for context in contexts:
        context.close()


def _is_remote(url: str) -> bool:
    return not url.startswith(("file:", "data:", "blob:"))


@pytest.fixture(scope="module")
def page_file(two_group_report: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return two_group_report.write_page(tmp_path_factory.mktemp("page") / "report.html")


def _picked(page: object) -> str:
    return page.evaluate("document.body.dataset.head")


def _matrix(page: object, name: str) -> list[float]:
    return page.evaluate(f"document.getElementById('{name}').data[0].z.flat()")


def test_clicking_a_head_changes_every_panel(visit: Callable[..., Visit], page_file: Path) -> None:
    seen = visit(page_file)
    page = seen.page
    assert _picked(page) == "0-3"  # the lowest entropy comes first
    before = {name: _matrix(page, name) for name in ("before", "after")}
    marks = page.evaluate("JSON.stringify(document.getElementById('tree').data[1].x)")
    batches = page.evaluate("JSON.stringify(document.getElementById('batches').data[3].y)")
    box = page.locator("#map .plotarea, #map .nsewdrag").first.bounding_box()
    # the map is 6 heads wide and 4 layers high; aim at layer 2, head 4
    page.mouse.click(box["x"] + box["width"] * 4.5 / 6, box["y"] + box["height"] * 2.5 / 4)
    page.wait_for_function("document.body.dataset.head === '2-4'")
    assert page.locator("#picked-title").inner_text().startswith("Layer 2, head 4")
    assert page.url.endswith("#2-4")
    for name in ("before", "after"):
        assert _matrix(page, name) != before[name]
    assert page.evaluate("JSON.stringify(document.getElementById('tree').data[1].x)") != marks
    assert page.evaluate("JSON.stringify(document.getElementById('batches').data[3].y)") != batches
    assert page.locator("#heads tr.current").get_attribute("data-head") == "2-4"
    assert seen.problems == []


def test_what_is_drawn_is_what_was_measured(
    visit: Callable[..., Visit], page_file: Path, two_group_report: Report
) -> None:
    page = visit(page_file, "#5-1").page
    record = two_group_report.head(5, 1)
    group = two_group_report.groups["cross"]
    index = group.head_keys().index((5, 1))
    shown = page.evaluate("Array.from(document.getElementById('batches').data[3].y)")
    assert shown == pytest.approx(group.entropies[:, index].tolist(), rel=1e-6)
    assert f"{record.entropy:.4g}" in page.locator("#facts").inner_text()
    leaf = page.evaluate(f"document.getElementById('tree').data[2].x[{index}]")
    assert leaf == group.tree.leaf_order.tolist().index(index)
    points = page.evaluate("[0].map(() => document.getElementById('diffusion').data[0].x)[0]")
    assert points == pytest.approx(group.diffusion[:, 0].tolist(), rel=1e-5)


def test_a_link_opens_the_head_and_its_group(visit: Callable[..., Visit], page_file: Path) -> None:
    seen = visit(page_file, "#4-2")
    assert _picked(seen.page) == "4-2"
    assert seen.page.locator("#group").input_value() == "cross"
    seen.page.evaluate("location.hash = '1-0'")
    seen.page.wait_for_function("document.body.dataset.head === '1-0'")
    assert seen.page.locator("#group").input_value() == "encoder"
    seen.page.evaluate("location.hash = 'no-such-head'")
    assert _picked(seen.page) == "1-0"
    assert seen.problems == []


def test_keyboard(visit: Callable[..., Visit], page_file: Path) -> None:
    seen = visit(page_file, "#1-2")
    page = seen.page
    page.locator("#map").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("document.body.dataset.head === '1-3'")
    page.keyboard.press("ArrowDown")
    page.wait_for_function("document.body.dataset.head === '2-3'")
    for _ in range(9):
        page.keyboard.press("ArrowLeft")
    page.wait_for_function("document.body.dataset.head === '2-0'")  # stops at the edge
    page.evaluate("""() => {  // faster than the page can redraw: none is lost
        const right = () => new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true });
        for (const _ of [1, 2, 3]) document.getElementById("map").dispatchEvent(right());
    }""")
    page.wait_for_function("document.body.dataset.head === '2-3'")
    page.evaluate("location.hash = '0-3'")
    page.wait_for_function("document.body.dataset.head === '0-3'")
    page.keyboard.press("]")
    page.wait_for_function("document.body.dataset.head === '1-1'")  # the next by rank
    page.keyboard.press("[")
    page.wait_for_function("document.body.dataset.head === '0-3'")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.type("3.5")
    page.wait_for_function("document.body.dataset.head === '3-5'")
    assert seen.problems == []


def test_sort_filter_and_search(visit: Callable[..., Visit], page_file: Path) -> None:
    seen = visit(page_file)
    page = seen.page
    rows = page.locator("#heads tbody tr")
    assert rows.count() == 24
    page.click('[data-column="entropy"]')
    page.click('[data-column="entropy"]')
    values = [float(text) for text in page.locator("#heads tbody td:nth-child(2)").all_inner_texts()]
    assert values == sorted(values, reverse=True)
    assert page.locator('th[aria-sort="descending"]').inner_text().startswith("entropy")
    page.select_option("#count-filter", "bottom")
    assert sorted(page.locator("#heads tbody td:first-child").all_inner_texts()) == ["0.3", "1.1"]
    page.select_option("#count-filter", "all")
    page.select_option("#layer-filter", "2")
    assert rows.count() == 6
    assert page.locator("#shown").inner_text() == "6 of 24 heads"
    page.select_option("#layer-filter", "all")
    page.fill("#search", "layer.3")
    assert rows.count() == 6
    page.click("#heads tbody tr:nth-child(2)")
    page.wait_for_function("document.body.dataset.head.startsWith('3-')")
    assert seen.problems == []


def test_dark_and_light(visit: Callable[..., Visit], page_file: Path) -> None:
    seen = visit(page_file, scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    assert seen.page.evaluate(ground) == "rgb(1, 4, 9)"
    seen.page.click("#theme")
    assert seen.page.evaluate(ground) == "rgb(246, 248, 250)"
    seen.page.click("#theme")
    assert seen.page.evaluate(ground) == "rgb(1, 4, 9)"
    assert seen.problems == []


def test_phone_width_needs_no_sideways_scrolling(visit: Callable[..., Visit], page_file: Path) -> None:
    seen = visit(page_file, width=380)
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= 380
    assert seen.page.locator("#before").bounding_box()["width"] > 120
    assert seen.problems == []


def test_a_thousand_heads(
    visit: Callable[..., Visit],
    make_group: Callable[..., GroupResult],
    make_report: Callable[..., Report],
    tmp_path: Path,
) -> None:
    report = make_report(make_group(n_layers=40, n_heads=25, tokens=54))
    path = report.write_page(tmp_path / "report.html")
    assert path.stat().st_size < 15_000_000
    seen = visit(path, "#39-24")
    assert _picked(seen.page) == "39-24"
    assert seen.page.locator("#heads tbody tr").count() == 1000
    assert seen.problems == []


def test_names_from_a_model_cannot_inject_markup(visit: Callable[..., Visit], report: Report, tmp_path: Path) -> None:
    from dataclasses import replace

    evil = "</script><script>document.title='taken'</script><img src=x onerror=alert(1)>"
    group = replace(report.group(), name="<b>g</b>", layer_names=(evil,) * 24)
    bad = replace(report, model=replace(report.model, id=evil), groups={group.name: group})
    seen = visit(bad.write_page(tmp_path / "report.html"))
    assert seen.page.title().startswith("</script>")
    assert seen.page.locator("header img, #picked-title img").count() == 0
    assert seen.problems == []


def test_show_opens_the_browser(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    path = report.show()
    assert opened == [path.as_uri()]
    assert path.read_text().startswith("<!doctype html>")


def test_equal_reports_give_equal_pages(report: Report, tmp_path: Path) -> None:
    report.save(tmp_path)
    first = report.write_page(tmp_path / "a.html").read_bytes()
    assert Report.load(tmp_path).write_page(tmp_path / "b.html").read_bytes() == first
