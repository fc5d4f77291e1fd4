"""What somebody else wrote, wherever it is shown: it steers no terminal, and becomes neither HTML nor a link."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from oattn_hub.cli import main
from oattn_hub.cli.terminal import console, printable
from oattn_hub.files import read_json, sha256_file, write_json
from oattn_hub.files.documents import SEAL, sealed
from oattn_hub.hub.push import card_of, shareable
from oattn_hub.hub.space import push_report_space
from oattn_hub.report import Report
from oattn_hub.sweep.state import Status

if TYPE_CHECKING:
    from collections.abc import Callable

STEERING = "evil\x1b]0;title\x07\x1b[2J\x9b31m\u202e[/red][link=http://evil.example]x[/link]"
MARKDOWN = "evil\n\n<img src=x onerror=alert(1)> ![t](http://evil.example/t.png) [a](javascript:b)\n\n# Head"


def named(report: Report, name: str) -> Report:
    """The report with that name wherever a file can put one."""
    group = next(iter(report.groups.values()))
    groups = {name: replace(group, name=name, layer_names=(name,) * group.n_heads)}
    made = replace(report.provenance, command=name, data=name, versions={name: name})
    return replace(report, model=replace(report.model, id=name, license=name), groups=groups, provenance=made)


@pytest.mark.parametrize("verb", ["heads", "heads --csv", "compare", "card", "prune"])
def test_no_name_steers_the_terminal(report: Report, tmp_path: Path, capsys: Any, verb: str) -> None:
    folder = str(named(report, STEERING).save(tmp_path / "hostile"))
    words: dict[str, list[str]] = {
        "heads": ["heads", folder],
        "heads --csv": ["heads", folder, "--csv"],
        "compare": ["compare", folder, str(report.save(tmp_path / "other"))],
        "card": ["card", folder],
        "prune": ["prune", folder, "--heads", "7.7"],
    }
    main(words[verb])
    shown = capsys.readouterr()
    assert shown.out + shown.err
    assert printable(shown.out + shown.err) == shown.out + shown.err


def test_a_console_shows_marks_as_letters(capsys: Any) -> None:
    console().print("[/red] [bold]x[/bold] :smile: \x1b[2J\x9b")
    assert capsys.readouterr().out == "[/red] [bold]x[/bold] :smile: [2J\n"


def test_an_error_shows_names_as_letters(tmp_path: Path, capsys: Any) -> None:
    assert main(["analyze", f"{tmp_path}/\x1b[2J\x07"]) == 1
    assert "\x1b" not in capsys.readouterr().err


def test_a_sweep_shows_names_as_letters(capsys: Any) -> None:
    from oattn_hub.cli.sweep import _tell

    _tell(Status(STEERING, "failed", error=STEERING))
    shown = capsys.readouterr().err
    assert "evil" in shown
    assert printable(shown) == shown


def test_markdown_in_names_stays_text_in_the_card(report: Report, tmp_path: Path) -> None:
    named(report, MARKDOWN).save(tmp_path / "hostile")
    body = card_of(tmp_path / "hostile").split("\n---\n", 1)[1]
    assert not [line for line in body.splitlines() if line.startswith(("<img", "# Head", "![t]"))]
    assert all(line.count("`", 0, line.index("<img")) % 2 for line in body.splitlines() if "<img" in line)  # in code
    prose = re.sub("`[^`\n]*`", "", body)
    assert "](http://evil" not in prose
    assert "](javascript" not in prose


def test_no_name_ends_our_part_of_a_card(report: Report, tmp_path: Path) -> None:
    from oattn_hub.hub.readme import BEGIN, END, merge_readme

    named(report, f"evil {END} {BEGIN}").save(tmp_path / "hostile")
    card = card_of(tmp_path / "hostile")
    body = card.split("\n---\n", 1)[1]
    assert (body.count(BEGIN), body.count(END)) == (1, 1)
    assert merge_readme(merge_readme("# Mine\n", card), card).count("## Citation") == 1


def test_html_in_a_name_stays_text_in_a_space(report: Report, tmp_path: Path) -> None:
    hostile = named(report, "evil\n\n<img src=x onerror=alert(1)> [a](javascript:b)")
    push_report_space(hostile, "me/space", dry_run=tmp_path / "space", token=False, endpoint="http://127.0.0.1:9")
    card = (tmp_path / "space/README.md").read_text().split("\n---\n", 1)[1]
    assert "<img" not in card
    assert "](javascript" not in card
    assert len([line for line in card.splitlines() if line.startswith("#")]) == 1


def test_a_dollar_sign_in_a_name_starts_no_formula(report: Report, tmp_path: Path) -> None:
    from oattn_hub.report.comparison import compare
    from oattn_hub.report.plot import render, section_figures

    name, group = r"$\evil{$", next(iter(report.groups.values()))
    groups = {name: replace(group, name=name), "b": replace(group, name="b", layers=group.layers + 10)}
    assert replace(report, groups=groups).save_figures(tmp_path / "figures")
    compared = compare(replace(report, model=replace(report.model, id=name)), report)
    assert all(render(figure) for figure in section_figures("comparison", compared))


# Letters that turn the direction of what follows: a name "abc\u202edlrow" would be read "abcworld".
TURNING = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def test_no_name_turns_the_direction_of_what_stands_beside_it(report: Report, tmp_path: Path, capsys: Any) -> None:
    from oattn_hub.report.comparison import compare
    from oattn_hub.report.contexts import Axis, Context
    from oattn_hub.sweep.leaderboard import Leaderboard, Row

    name = f"a{TURNING}b"
    contexts = (Context(0, (Axis("input_ids", "text", 20, (name,) * 20),)),)
    hostile = replace(named(report, name), contexts=contexts)
    compare(hostile, report).save(tmp_path / "compared", hostile, report)
    hostile.write_page(tmp_path / "page.html")
    hostile.save(tmp_path / "hostile")
    row = Row(name, name, 1, 1, 1, name, 1.0, None, None, None, "page")
    Leaderboard(name, (row,), {name: name}).save(tmp_path / "board")
    console().print(name)
    shown = {str(path): path.read_text() for path in tmp_path.rglob("*.html")}
    shown |= {"card": card_of(tmp_path / "hostile"), "terminal": capsys.readouterr().out}
    push_report_space(hostile, "me/space", dry_run=tmp_path / "space", token=False, endpoint="http://127.0.0.1:9")
    shown["space"] = (tmp_path / "space/README.md").read_text()
    assert len(shown) == 6
    for place, text in shown.items():
        found = [letter for letter in TURNING if letter in text]
        assert not found, f"{place} shows {found}"


def test_no_cell_of_a_leaderboard_is_a_formula(tmp_path: Path) -> None:
    from oattn_hub.sweep.leaderboard import Leaderboard, Row

    row = Row("=1+1", "-2", 1, 1, 1, "@g", -1.5, None, None, None, "+page")
    Leaderboard("board", (row,), {}).save(tmp_path)
    assert (tmp_path / "leaderboard.csv").read_text().splitlines()[1] == "'=1+1,'-2,1,1,1,'@g,-1.5,,,,'+page"


# what the system refuses to look at -----------------------------------------------------------------------------------

NAMES = ["x" * 5000, "/" + "y" * 5000, "a/" + "z" * 5000, "a\0b", "oattn 'unclosed", "~" * 300, "..", "con"]


@pytest.mark.parametrize("name", NAMES)
def test_odd_names_in_a_report_are_no_error_of_the_system(report: Report, tmp_path: Path, name: str) -> None:
    made = replace(report.provenance, command=f"oattn {name}", data=f"text of {name}")
    model = replace(report.model, id=name, source=name, revision="../" * 13 + "x")
    hostile = replace(report, model=model, provenance=made)
    assert "revision" not in hostile.model.loading_options
    hostile.save(tmp_path / "hostile")
    assert shareable(Report.load(tmp_path / "hostile")).heads == report.heads
    assert card_of(tmp_path / "hostile")
    assert main(["prune", str(tmp_path / "hostile"), "--heads", "0.1", "--out", str(tmp_path / "out")]) == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are a matter of POSIX")
@pytest.mark.parametrize("endless", ["pipe", "device"])
def test_a_pipe_or_a_device_in_the_place_of_a_file_is_refused(report: Report, tmp_path: Path, endless: str) -> None:
    from oattn_hub.errors import OattnError
    from oattn_hub.files import read_header

    path = report.save(tmp_path / "report") / "report.safetensors"
    path.unlink()
    make: Callable[[], None] = {"pipe": lambda: os.mkfifo(path), "device": lambda: path.symlink_to("/dev/zero")}[
        endless
    ]
    make()
    with pytest.raises(OattnError, match="not a plain file"):
        Report.load(tmp_path / "report")
    with pytest.raises(OattnError, match="not a plain file"):
        read_header(path)


# sections of a report that an attacker wrote, with a seal that fits ---------------------------------------------------


def rewritten(folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    document = {key: value for key, value in read_json(folder / "report.json").items() if key != SEAL}
    change(document)
    document["tensors_sha256"] = sha256_file(folder / "report.safetensors")
    write_json(folder / "report.json", sealed(document))
    return folder


GROUP_LIES = {
    "name": 5, "n_queries": "many", "n_keys": None, "fraction": "x", "spearman": "x", "jaccard": 2**70,
    "layer_names": [None], "pooled": [1, 2, 3],
}  # fmt: skip


@pytest.mark.parametrize("field", GROUP_LIES)
def test_a_group_with_a_valid_seal_and_other_types_is_refused(report: Report, tmp_path: Path, field: str) -> None:
    from oattn_hub.errors import FormatError

    def lie(document: dict[str, Any]) -> None:
        group = document["groups"][0]
        group[field] = GROUP_LIES[field] * len(group[field]) if field == "layer_names" else GROUP_LIES[field]

    folder = rewritten(report.save(tmp_path / "report"), lie)
    with pytest.raises(FormatError):
        Report.load(folder)


def evaluation() -> dict[str, Any]:
    curve = {part: [0.0, 0.1] for part in ("mean", "low", "high")}
    score = {
        "name": "weight", "title": "w", "citation": "", "cost": "", "seconds": 0.0, "values": [0.0, 1.0],
        "curves": {"divergence": curve}, "auc": 0.1, "auc_low": 0.1, "auc_high": 0.1, "spearman": None,
        "low": [], "high": [],
    }  # fmt: skip
    metric = {"name": "divergence", "title": "KL", "higher_is_better": False, "relative": False, "baseline": 0.0}
    words = ("weights", "calibration", "evaluation", "calibration_fingerprint", "evaluation_fingerprint")
    return {
        "metrics": [metric], "fractions": [0.0, 0.5], "heads": [[0, 0], [0, 1]], "scores": [score], "seeds": 1,
        "n_inputs": 1, **dict.fromkeys(words, ""), "evaluations": 0, "seconds": 0.0, "notes": [],
    }  # fmt: skip


EVALUATION_LIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "fractions of text": lambda e: e.update(fractions=["a", "b"]),
    "fractions that fall": lambda e: e.update(fractions=[0.5, 0.0]),
    "fractions over 1": lambda e: e.update(fractions=[0.0, 7.0]),
    "NaN among the fractions": lambda e: e.update(fractions=[0.0, "NaN"]),
    "no metrics": lambda e: e.update(metrics=[]),
    "no scores": lambda e: e.update(scores=[]),
    "a head twice": lambda e: e.update(heads=[[0, 0], [0, 0]]),
    "a head of three numbers": lambda e: e.update(heads=[[0, 0, 1], [0, 1]]),
    "values missing": lambda e: e["scores"][0].update(values=[0.0]),
    "a curve too short": lambda e: e["scores"][0]["curves"]["divergence"].update(mean=[0.0]),
    "a curve of text": lambda e: e["scores"][0]["curves"]["divergence"].update(mean=["a", "b"]),
    "no curve": lambda e: e["scores"][0].update(curves={}),
    "curves that are a list": lambda e: e["scores"][0].update(curves=[1]),
    "an unknown field": lambda e: e.update(more=1),
}


@pytest.mark.parametrize("lie", EVALUATION_LIES)
def test_an_evaluation_that_does_not_fit_itself_is_refused(lie: str) -> None:
    from oattn_hub.errors import FormatError
    from oattn_hub.report.evaluation import EvaluationSection

    whole = evaluation()
    assert EvaluationSection.from_json(json.loads(json.dumps(whole))).to_json() == whole
    EVALUATION_LIES[lie](whole)
    with pytest.raises(FormatError, match="evaluation"):
        EvaluationSection.from_json(whole)


@pytest.mark.parametrize(
    ("field", "value"),
    [("shape", [2**40, 2**20]), ("shape", [0, 5]), ("offsets", "reversed"), ("codes", "shorter"), ("low", "shorter")],
)
def test_a_kept_context_that_would_fill_the_memory_is_refused(report: Report, field: str, value: Any) -> None:
    import numpy as np

    from oattn_hub.errors import FormatError
    from oattn_hub.report.contexts import sample_arrays, samples_from

    arrays = sample_arrays(next(iter(report.groups.values())).samples)
    assert samples_from(arrays)
    path = next(name for name in arrays if name.endswith(f"/{field}"))
    changes = {"reversed": arrays[path][::-1], "shorter": arrays[path][:-1]}
    arrays[path] = changes[value] if isinstance(value, str) else np.array(value)
    with pytest.raises(FormatError, match="damaged"):
        samples_from(arrays)


def test_an_index_without_its_number_format_has_the_usual_one(tmp_path: Path) -> None:
    import numpy as np

    from oattn_hub.attention.store import AttentionStore, StoreInfo
    from oattn_hub.attention.writer import StoreWriter
    from oattn_hub.records import ModelInfo

    writer = StoreWriter(tmp_path / "store", StoreInfo(ModelInfo("m"), ("probs",)), resume=False)
    batch = writer.begin_batch()
    batch.add_layer("encoder", 2, 2, 0, "layer", 1)
    batch.add_heads("encoder", "probs", np.ones((1, 2, 2), dtype=np.float32))
    writer.finish_batch(batch, "0" * 64, [])
    writer.release()
    index = {key: value for key, value in read_json(tmp_path / "store/index.json").items() if key != SEAL}
    del index["info"]["dtype"]
    write_json(tmp_path / "store/index.json", sealed(index))
    assert AttentionStore.open(tmp_path / "store").tensor(0).dtype == np.float32
