"""The page in a real browser: it opens from disk, without network and without console errors, and does what it says."""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from oattn_hub.report import GroupResult, Report
from oattn_hub.report.answer import Removal
from oattn_hub.report.contexts import Axis, Context
from oattn_hub.report.validation import Domain, RemovalTrial, ValidationSection
from oattn_hub.sweep.leaderboard import Leaderboard, _row

playwright = pytest.importorskip("playwright.sync_api")
OPTIONS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)


def _chromium() -> str | None:
    return os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    executable = _chromium()
    if executable is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no chromium; install Debian's chromium")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=executable, args=OPTIONS.split())
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

    def open_page(
        path: Path, fragment: str = "", width: int = 1440, scheme: str = "light", script: bool = True
    ) -> Visit:
        size = {"width": width, "height": 900}
        context = browser.new_context(viewport=size, color_scheme=scheme, offline=True, java_script_enabled=script)
        contexts.append(context)
        seen = Visit(context.new_page())
        seen.page.on("pageerror", lambda error: seen.problems.append(str(error)))
        seen.page.on("console", lambda message: seen.problems.append(message.text) if message.type == "error" else None)
        seen.page.on("request", lambda request: seen.problems.append(request.url) if _is_remote(request.url) else None)
        seen.page.goto(path.as_uri() + fragment)
        if script:
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


@pytest.fixture(scope="module")
def measured_file(measured_report: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return measured_report.write_page(tmp_path_factory.mktemp("page") / "report.html")


def _picked(page: object) -> str:
    return page.evaluate("document.body.dataset.head")


def _pick(page: object, key: str) -> None:
    page.evaluate(f"location.hash = '{key}'")
    page.wait_for_function(f"document.body.dataset.head === '{key}'")


def _drawn(page: object, name: str) -> str:
    return page.evaluate(f"document.querySelector('#{name} canvas').toDataURL()")


# ---------------------------------------------------------------- the answer


def test_the_first_screen_answers(visit: Callable[..., Visit], measured_file: Path, measured_report: Report) -> None:
    seen = visit(measured_file)
    page = seen.page
    headline = page.locator(".headline")
    assert headline.inner_text().startswith("2 of 24 heads can go at a cost of at most 0.012 (measured, 95 %")
    assert headline.bounding_box()["y"] < 200
    assert "20 × 20, probs" in page.locator("#attention-title").inner_text()
    assert page.locator("#map").bounding_box()["y"] < 900  # the map is on the first screen too
    assert page.locator(".go .chip").all_inner_texts() == ["0.3", "1.1"]
    assert page.locator(".stay .chip").all_inner_texts() == ["3.5", "3.4"]  # the costliest first
    assert page.locator("#map .mark").count() == 2
    assert page.locator("#map .dot").count() == 2
    by_cost = page.locator("#map rect[data-head='2-2']").get_attribute("fill")
    page.select_option("#map-colour", "entropy")
    assert page.locator("#map rect[data-head='2-2']").get_attribute("fill") != by_cost
    assert page.locator("#map .mark").count() == 2  # the plan's heads stay marked
    assert seen.problems == []


def test_without_an_evaluation_the_page_says_what_to_run(visit: Callable[..., Visit], page_file: Path) -> None:
    page = visit(page_file).page
    assert page.locator(".headline").inner_text().startswith("Only entropy was measured")
    assert page.locator(".headline code").inner_text() == "oattn evaluate RUN"
    assert "oattn evaluate run" in page.locator("#run").inner_text()
    assert {"ablation", "batch", "rank correlation", "Jaccard"} <= set(page.locator("#words dt").all_inner_texts())


def test_the_legend_explains_no_mark_that_is_not_there(
    visit: Callable[..., Visit], two_group_report: Report, tmp_path: Path
) -> None:
    def nowhere_lowest(group: GroupResult) -> GroupResult:
        counts = np.minimum(group.ranking.bottom_counts, group.n_batches - 1)
        return replace(group, ranking=replace(group.ranking, bottom_counts=counts))

    groups = {name: nowhere_lowest(group) for name, group in two_group_report.groups.items()}
    page = visit(replace(two_group_report, groups=groups).write_page(tmp_path / "report.html")).page
    assert page.locator("#map .ring").count() == 0
    assert page.locator("#map-legend svg").count() == 0
    assert "no head is in the lowest" in page.locator("#map-legend").inner_text()


def test_a_plan_without_an_evaluation_is_answered_in_words_that_fit(
    visit: Callable[..., Visit], report: Report, tmp_path: Path
) -> None:
    cost = {"metric": "loss", "title": "loss per token", "increase": 0.004, "low": 0.0, "high": 0.008, "n_inputs": 9}
    plan = SimpleNamespace(heads=[(0, 3), (1, 2)], score="search", cost=cost)
    seen = visit(report.with_plan(plan).write_page(tmp_path / "report.html"))
    page = seen.page
    assert page.locator("#map .mark").count() == 2
    legend = page.locator("#map-legend").inner_text()
    assert "can go" in legend
    assert "in every batch" not in legend
    assert page.locator("#map .ring").count() == 0
    unsure = page.locator(".unsure").inner_text()
    assert "They are not in the plan, and what one of them costs alone was not measured." in unsure
    assert "higher cost" not in unsure
    assert "oattn prune run --heads 0.3,1.2 --out pruned" in page.locator("#run").inner_text()
    _pick(page, "0-3")
    assert "It is in the plan" in page.locator("body").inner_text()
    assert "cheap" not in page.locator(".badge").locator("..").inner_text()
    assert seen.problems == []


def test_heads_of_which_not_even_the_cost_alone_is_sure_are_marked(
    visit: Callable[..., Visit], measured_report: Report, tmp_path: Path
) -> None:
    section = measured_report.evaluation
    ablation = section.score("ablation")
    low, high = (tuple(value + sign * 0.015 for value in ablation.values) for sign in (-1, 1))
    sure = replace(ablation, low=low, high=high)
    scores = tuple(sure if score is ablation else score for score in section.scores)
    doubted = measured_report.with_evaluation(replace(section, scores=scores))
    seen = visit(doubted.write_page(tmp_path / "report.html"), "#3-4")
    page = seen.page
    assert page.locator("#map .doubt").count() == 1
    assert page.locator("#map .dot").count() == 1
    assert "alone perhaps over 0.02" in page.locator("#map-legend").inner_text()
    assert "0.03 (95 %: 0.015 to 0.045)" in page.locator("#strips").text_content()
    assert "0.015 – 0.045" in page.locator("#heads tr[data-head='3-4']").text_content()
    assert seen.problems == []


def test_at_most_five_curves_with_names_at_their_ends(visit: Callable[..., Visit], measured_file: Path) -> None:
    seen = visit(measured_file)
    page = seen.page
    assert page.locator("#costs path.line").count() == 5
    colours = page.evaluate(
        "[...document.querySelectorAll('#costs path.line')].map((line) => line.getAttribute('stroke'))"
    )
    assert len(set(colours)) == 5
    names = page.locator("#costs text.end").all_text_contents()
    assert len(names) == 5
    assert "random" in names
    edge = page.locator("#costs svg").bounding_box()
    for label in page.locator("#costs text.end").all():
        box = label.bounding_box()
        assert box["x"] + box["width"] <= edge["x"] + edge["width"] + 1
    page.locator("#score-list input:not(:checked)").first.check()
    assert page.locator("#costs path.line").count() == 6
    assert seen.problems == []


# ---------------------------------------------------------------- choosing a head


def test_clicking_a_head_changes_every_panel(visit: Callable[..., Visit], page_file: Path) -> None:
    seen = visit(page_file)
    page = seen.page
    assert _picked(page) == "0-3"  # the lowest entropy comes first
    before = {name: _drawn(page, name) for name in ("before", "after", "diffusion", "affinity")}
    branch = page.locator("#tree-mark").get_attribute("d")
    page.locator("#map rect[data-head='2-4']").click()
    page.wait_for_function("document.body.dataset.head === '2-4'")
    assert page.locator("#picked-title").inner_text().startswith("Head 2.4")
    assert page.url.endswith("#2-4")
    for name, drawing in before.items():
        assert _drawn(page, name) != drawing
    assert page.locator("#tree-mark").get_attribute("d") != branch
    assert page.locator("#heads tr.current").get_attribute("data-head") == "2-4"
    assert seen.problems == []


def test_what_is_drawn_is_what_was_measured(
    visit: Callable[..., Visit], page_file: Path, two_group_report: Report
) -> None:
    page = visit(page_file, "#5-1").page
    group = two_group_report.groups["cross"]
    index = group.head_keys().index((5, 1))
    shown = page.evaluate(f"page.groups[1].entropies.values.filter((_, i) => i % {group.n_heads} === {index})")
    assert shown == pytest.approx(group.haar.entropies[:, index].tolist(), rel=1e-6)
    a, b = 3, 8
    assert page.evaluate(f"affinity(page.groups[1], {a}, {b})") == pytest.approx(
        group.geometry.affinity[a, b], abs=1 / 255
    )
    values = page.evaluate(
        f"readMatrix(page.groups[1].samples[0], {index}).then((m) => Array.from(m.codes, (code) => m.table[code]))"
    )
    assert values == pytest.approx(group.samples[0].matrix(index).ravel().tolist(), rel=1e-6)
    order = page.evaluate("Array.from(page.groups[1].samples[0].queryOrder)")
    assert order == group.samples[0].query_order.tolist()


def test_a_link_opens_the_head_and_its_group(visit: Callable[..., Visit], page_file: Path) -> None:
    seen = visit(page_file, "#4-2")
    assert _picked(seen.page) == "4-2"
    assert seen.page.locator("#group").input_value() == "cross"
    _pick(seen.page, "1-0")
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
    _pick(page, "0-3")
    page.keyboard.press("]")
    page.wait_for_function("document.body.dataset.head === '1-1'")  # the next by rank
    page.keyboard.press("[")
    page.wait_for_function("document.body.dataset.head === '0-3'")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.type("3.5")
    page.wait_for_function("document.body.dataset.head === '3-5'")
    assert seen.problems == []


# ---------------------------------------------------------------- attention, read


def test_hovering_tells_token_to_token(visit: Callable[..., Visit], measured_file: Path) -> None:
    seen = visit(measured_file, "#2-4")
    page = seen.page
    page.locator("#before canvas").scroll_into_view_if_needed()
    box = page.locator("#before canvas").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.5)
    shown = page.locator("#tip").inner_text()
    assert "→" in shown
    assert "“word" in shown
    assert "attends with ≈" in shown
    assert page.locator("#reading .token").count() == 20
    assert re.fullmatch(
        r"Most is given to (“word\d+” \(\d+\): [\d.]+ %(, |\.$)){3}", page.locator("#reading-most").inner_text()
    )
    assert page.locator("#reading-title b").inner_text().startswith("“word")
    page.mouse.click(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.5)  # holds the row
    page.mouse.move(10, 10)
    assert page.locator("#reading .token.query").count() == 1
    first = _drawn(page, "before")
    page.select_option("#context", "1")
    page.wait_for_function(f"document.querySelector('#before canvas').toDataURL() !== {first!r}")
    assert page.locator("#reading .token").first.inner_text() == "other0"
    assert seen.problems == []


def test_patches_lie_over_the_picture(visit: Callable[..., Visit], report: Report, tmp_path: Path) -> None:
    import base64

    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.full((32, 32, 3), 200, dtype=np.uint8)).save(file, "JPEG")
    picture = base64.b64encode(file.getvalue()).decode()
    axis = Axis("pixel_values", "image", 20, picture=picture, rows=4, columns=4, prefix=4)
    path = replace(report, contexts=(Context(0, (axis,)),)).write_page(tmp_path / "report.html")
    seen = visit(path)
    page = seen.page
    page.locator("#reading canvas").scroll_into_view_if_needed()
    box = page.locator("#reading canvas").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.9, box["y"] + box["height"] * 0.4)
    assert page.locator("#tip").inner_text().startswith("patch row 1, column 3")
    page.mouse.click(box["x"] + box["width"] * 0.9, box["y"] + box["height"] * 0.4)
    assert page.locator("#reading-title b").inner_text() == "patch row 1, column 3"
    assert seen.problems == []


def test_sound_is_read_in_seconds(visit: Callable[..., Visit], report: Report, tmp_path: Path) -> None:
    axis = Axis("input_features", "time", 20, seconds=5.0)
    seen = visit(replace(report, contexts=(Context(0, (axis,)),)).write_page(tmp_path / "report.html"))
    assert "0.00 s" in seen.page.locator("#reading").text_content()
    assert seen.problems == []
    merged = Axis("input_features", "time", 1500, seconds=30.0)  # 75 positions of the model to each that is left
    seen = visit(replace(report, contexts=(Context(0, (merged,)),)).write_page(tmp_path / "merged.html"))
    assert "15.00 s" in seen.page.locator("#reading").text_content()
    assert seen.problems == []


# ---------------------------------------------------------------- the table


def test_sort_filter_and_search(visit: Callable[..., Visit], measured_file: Path) -> None:
    seen = visit(measured_file)
    page = seen.page
    rows = page.locator("#heads tbody tr:visible")
    assert rows.count() == 24
    page.click('[data-column="entropy"] button')
    page.click('[data-column="entropy"] button')
    values = [float(text) for text in page.locator("#heads tbody td:nth-child(5)").all_inner_texts()]
    assert values == sorted(values, reverse=True)
    assert page.locator('th[aria-sort="descending"]').inner_text().startswith("entropy")
    page.select_option("#verdict-filter", "low")
    assert sorted(page.locator("#heads tbody tr:visible td:first-child").all_inner_texts()) == ["0.3", "1.1"]
    page.select_option("#verdict-filter", "must stay")
    assert sorted(page.locator("#heads tbody tr:visible td:first-child").all_inner_texts()) == ["3.4", "3.5"]
    page.select_option("#verdict-filter", "all")
    page.select_option("#layer-filter", "2")
    assert rows.count() == 6
    assert page.locator("#shown").inner_text() == "6 of 24 heads"
    page.select_option("#layer-filter", "all")
    page.fill("#search", "layer.3")
    assert rows.count() == 6
    rows.nth(1).locator("td").nth(3).click()
    page.wait_for_function("document.body.dataset.head.startsWith('3-')")
    assert seen.problems == []


def test_the_download_is_the_table_of_the_command_line_and_of_pandas(
    visit: Callable[..., Visit], measured_file: Path, measured_report: Report, tmp_path: Path
) -> None:
    from oattn_hub.cli import main

    page = visit(measured_file).page
    with page.expect_download() as waiting:
        page.click("#download")
    downloaded = Path(waiting.value.path()).read_text()
    measured_report.save(tmp_path)
    out = tmp_path / "heads.csv"
    assert main(["heads", str(tmp_path), "--csv", str(out)]) == 0
    assert downloaded == out.read_text()
    frame = measured_report.to_pandas().reset_index()
    rows = list(csv.DictReader(io.StringIO(downloaded)))
    assert set(rows[0]) == set(frame.columns)
    for name in ("entropy", "ablation", "gradient", "rank", "folder"):
        assert [float(row[name]) for row in rows] == pytest.approx(frame[name].tolist(), rel=1e-5)
    assert [row["verdict"] for row in rows] == frame["verdict"].tolist()


# ---------------------------------------------------------------- every state


def test_dark_and_light(visit: Callable[..., Visit], measured_file: Path) -> None:
    seen = visit(measured_file, scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    assert seen.page.evaluate(ground) == "rgb(1, 4, 9)"
    seen.page.click("#theme")
    assert seen.page.evaluate(ground) == "rgb(246, 248, 250)"
    seen.page.click("#theme")
    assert seen.page.evaluate(ground) == "rgb(1, 4, 9)"
    assert seen.problems == []


@pytest.mark.parametrize("width", [390, 1440])
def test_nothing_is_cut_off(visit: Callable[..., Visit], measured_report: Report, tmp_path: Path, width: int) -> None:
    seen = visit(_validated(measured_report).write_page(tmp_path / "report.html"), width=width)
    page = seen.page
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    hidden = page.evaluate("""[...document.querySelectorAll(".scroll, .verdicts > div")]
        .filter((box) => box.scrollWidth > box.clientWidth + 1).map((box) => box.textContent.trim().slice(0, 40))""")
    assert hidden == []
    assert page.locator("#validation tbody tr").count() == 2
    assert page.locator("#before").bounding_box()["width"] > 200
    assert seen.problems == []


def test_a_long_name_of_a_layer_does_not_widen_a_phone(
    visit: Callable[..., Visit], measured_report: Report, tmp_path: Path
) -> None:
    """ALBERT's layers made the whole page 443 pixels wide."""
    group = measured_report.group()
    name = "albert.encoder.albert_layer_groups.0.albert_layers.0.attention#0"
    named = replace(measured_report, groups={group.name: replace(group, layer_names=(name,) * group.n_heads)})
    page = visit(named.write_page(tmp_path / "report.html"), "#2-2", width=390).page
    assert name in page.locator("#picked-title").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_plan_that_removes_nothing_has_no_cost(measured_report: Report, tmp_path: Path) -> None:
    """ "Loss per token: worse by 0.00 %, 95 % interval over inputs 0.00 % to 0.00 %" stood under "Can go 0"."""
    look = {"metric": "loss", "title": "loss", "before": 4.0, "after": 4.0, "increase": 0.0, "low": 0.0, "high": 0.0,
            "upper": 0.0, "verified_on": "text", "inputs": "f" * 64, "n_inputs": 9}  # fmt: skip
    none = Removal((), "search", {**look, "lengths": [look]})
    text = replace(measured_report, removal=none).write_page(tmp_path / "report.html").read_text()
    assert "0.00 %" not in text[text.index("Can go") : text.index("Must stay")]
    assert "was shown to keep the budget" in text


def test_numbers_and_hints_are_not_broken_on_a_wide_screen(visit: Callable[..., Visit], measured_file: Path) -> None:
    """Intervals stood on two lines, and the hint in the field for a head ended at "part of a layer's na"."""
    page = visit(measured_file).page
    lines = page.evaluate("""[...document.querySelectorAll("#evaluation tbody td:not(:first-child):not(:last-child)")]
        .map((cell) => { const text = document.createRange(); text.selectNodeContents(cell);
          return new Set([...text.getClientRects()].map((box) => Math.round(box.top))).size; })""")
    assert max(lines) == 1
    room = page.evaluate("""(() => { const field = document.querySelector("#search"), style = getComputedStyle(field),
        pen = document.createElement("canvas").getContext("2d"); pen.font = style.font;
        const inside = field.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
        return inside - pen.measureText(field.placeholder).width; })()""")
    assert room >= 0


def test_a_page_explains_no_column_that_it_lacks_and_says_no_command_twice(page_file: Path) -> None:
    text = page_file.read_text()
    assert "Ablation: cost" not in text[text.index('id="table"') : text.index("Entropy over the batches")]
    assert "<dt>Again</dt>" not in text


def _validated(report: Report) -> Report:
    """With a validation as `oattn validate` makes one: long names of metrics, numbers with intervals."""
    trials = tuple(
        RemovalTrial(
            "encoder", heads, "divergence", "1 - cosine with the unpruned embedding", 0.00857, 0.00639, 0.011,
            (0.00822,) * 5, 0.000343, -0.00419, 0.00434,
        )
        for heads in (((0, 3),), ((0, 3), (1, 1)))
    )  # fmt: skip
    domain = Domain("a.txt", "a.txt, 20 contexts", "f" * 64, 20)
    return replace(report, validation=ValidationSection((domain,), (), (), (), trials, 0.1, "a.txt", "f" * 64, 16, 0))


def test_no_words_lie_over_others_on_a_phone(
    visit: Callable[..., Visit], measured_report: Report, tmp_path: Path
) -> None:
    """A cost's interval lay over the name of its strip, and the title of the colours over their ends."""
    section = measured_report.evaluation
    assert section is not None
    scores = tuple(replace(score, low=score.values, high=score.values) for score in section.scores)
    report = measured_report.with_evaluation(replace(section, scores=scores))
    page = visit(report.write_page(tmp_path / "report.html"), "#2-2", width=390).page
    page.evaluate("""() => {
        const few_layers = svg("svg", { id: "few-layers", width: 80, height: 90 });
        document.body.append(few_layers);
        colourBar(few_layers, 4, 4, 80, () => [0, 0, 0], 0.0009, 0.071, "cost alone (log)");
    }""")
    for place in ("#strips svg", "#map svg", "#few-layers"):
        for drawing in page.locator(place).all():
            boxes = [text.bounding_box() for text in drawing.locator("text").all()]
            for one, other in combinations(boxes, 2):
                wide = min(one["x"] + one["width"], other["x"] + other["width"]) - max(one["x"], other["x"])
                high = min(one["y"] + one["height"], other["y"] + other["height"]) - max(one["y"], other["y"])
                assert min(wide, high) <= 3, (place, one, other)


def test_a_leaderboard_says_what_the_pages_say_and_fits_a_phone(
    visit: Callable[..., Visit], measured_report: Report, tmp_path: Path
) -> None:
    """It named a part by the task's loss, which can say nothing of heads, and showed a phone only the models' names."""
    measured_report.save(tmp_path / "run")
    row = _row("sentence-transformers/a-model-with-a-long-name", tmp_path / "run")
    assert row.removable == 2 / 24  # as in test_the_first_screen_answers
    (page, _) = Leaderboard("sweep", (row,), {}).save(tmp_path)
    context = visit(measured_report.write_page(tmp_path / "report.html"), width=390).page
    context.goto(page.as_uri())
    assert context.locator("tbody td").all_inner_texts()[4] == "8 %"
    assert context.evaluate("(box => box.scrollWidth <= box.clientWidth)(document.querySelector('.scroll'))")


def test_without_javascript_the_answer_and_the_tables_are_there(
    visit: Callable[..., Visit], measured_file: Path
) -> None:
    page = visit(measured_file, script=False).page
    assert page.locator(".headline").is_visible()
    assert page.locator("#heads tbody tr").count() == 24
    assert page.locator("#evaluation tbody tr").count() == 7
    assert page.locator("#words").is_visible()
    assert page.locator(".no-script").is_visible()
    assert not page.locator("#map").is_visible()


def test_a_thousand_heads(
    visit: Callable[..., Visit],
    make_group: Callable[..., GroupResult],
    make_report: Callable[..., Report],
    tmp_path: Path,
) -> None:
    report = make_report(make_group(n_layers=32, n_heads=32, tokens=128, kept=True))
    path = report.write_page(tmp_path / "report.html")
    assert path.stat().st_size < 4_000_000
    seen = visit(path, "#31-31")
    assert _picked(seen.page) == "31-31"
    assert seen.page.locator("#heads tbody tr").count() == 1024
    _pick(seen.page, "7-7")
    assert seen.problems == []


def test_five_hundred_tokens(
    visit: Callable[..., Visit],
    make_group: Callable[..., GroupResult],
    make_report: Callable[..., Report],
    tmp_path: Path,
) -> None:
    report = make_report(make_group(n_layers=2, n_heads=6, tokens=512, kept=True))
    seen = visit(report.write_page(tmp_path / "report.html"))
    _pick(seen.page, "1-5")
    rows = seen.page.evaluate("page.groups[0].samples[0].rows")
    assert rows == 512  # full resolution
    assert seen.problems == []


def test_names_from_a_model_cannot_inject_markup(
    visit: Callable[..., Visit], measured_report: Report, tmp_path: Path
) -> None:
    evil = "</script><script>document.title='taken'</script><img src=x onerror=alert(1)>"
    axis = Axis("input_ids", "text", 20, tuple([evil] * 20))
    group = replace(measured_report.group(), name="<b>g</b>", layer_names=(evil,) * 24)
    model = replace(measured_report.model, id=evil)
    bad = replace(measured_report, model=model, groups={group.name: group}, contexts=(Context(0, (axis,)),))
    seen = visit(bad.write_page(tmp_path / "report.html"))
    assert seen.page.title().startswith("</script>")
    assert seen.page.locator("img").count() == 0
    assert seen.problems == []


def test_a_report_without_samples_still_has_a_page(visit: Callable[..., Visit], report: Report, tmp_path: Path) -> None:
    group = replace(report.group(), samples=())
    seen = visit(replace(report, groups={group.name: group}).write_page(tmp_path / "report.html"))
    assert not seen.page.locator("#attention").is_visible()
    assert seen.problems == []


def test_show_opens_the_browser(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    path = report.show()
    assert opened == [path.as_uri()]
    assert path.read_text().startswith("<!doctype html>")


def test_equal_reports_give_equal_pages(measured_report: Report, tmp_path: Path) -> None:
    measured_report.save(tmp_path)
    first = measured_report.write_page(tmp_path / "a.html").read_bytes()
    assert Report.load(tmp_path).write_page(tmp_path / "b.html").read_bytes() == first


def test_a_training_is_played(two_group_report: Report, tmp_path: Path, visit: Callable[..., Visit]) -> None:
    from oattn_hub.report.training_page import write_training_page

    moments = [
        (100 * number, two_group_report, {"heads/entropy": 1.0 + number, "heads/<b>": 0.5} if number else {})
        for number in range(4)
    ]
    page = write_training_page(moments, tmp_path / "training.html")
    seen = visit(page)
    assert seen.page.text_content("#step") == "step 300"
    assert seen.page.locator(".map").count() == 2
    seen.page.click("#play")  # from the end it starts again
    seen.page.wait_for_function("document.getElementById('step').textContent === 'step 100'")
    seen.page.wait_for_function("document.getElementById('play').textContent === 'Play'")
    assert seen.page.text_content("#step") == "step 300"
    seen.page.locator("#moment").fill("2")
    assert seen.page.text_content("#step") == "step 200"
    assert "entropy" in seen.page.locator(".map td[title]").first.get_attribute("title")
    assert seen.problems == []
    still = visit(page, script=False)
    assert still.page.locator(".numbers tbody tr").count() == 2
    assert not still.page.locator("#play").is_visible()
