"""What the command line does with a report that is already there."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from oattn_hub.cli import build_parser
from oattn_hub.cli.prune import _keep_in_report
from oattn_hub.errors import InvalidInput
from oattn_hub.report import Report

COST = {"metric": "divergence", "title": "KL", "increase": 0.008, "low": 0.0, "high": 0.01}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("prune REPORT --budget 1% --keep 77.0", "There is no head 77.0: the layers are 0 to 3"),
        ("prune REPORT --budget 1% --keep 7", "--keep is '7'"),
        ("prune REPORT --heads 1.99", "There is no head 1.99"),
        ("prune REPORT --budget 200%", "--budget is 200%; give a part between 0 and 100 %"),
        ("validate REPORT --remove 1-24", "from 1 to 23"),
    ],
)
def test_what_a_report_does_not_have_is_refused_before_a_model_is_loaded(
    line: str, words: str, report: Report, tmp_path: Path
) -> None:
    report.save(tmp_path / "run")
    args = build_parser().parse_args(line.replace("REPORT", str(tmp_path / "run")).split())
    with pytest.raises(InvalidInput) as refused:
        args.check(args)
    assert words in str(refused.value)


def test_a_verified_plan_is_not_replaced_by_one_that_its_own_inputs_chose(
    measured_report: Report, tmp_path: Path
) -> None:
    """`oattn prune RUN --fraction 0.1`, tried without --out, took a verified plan off the page."""
    measured_report.save(tmp_path)
    measured_report.write_page(tmp_path / "report.html")
    chosen_here = SimpleNamespace(heads=[(0, 1)], score="output", cost={**COST, "compared": 9})
    verified = SimpleNamespace(heads=[(0, 3), (1, 1)], score="search", cost=COST)
    for plan, shown in ((chosen_here, 1), (verified, 2), (chosen_here, 2), (chosen_here, 2)):
        page = _keep_in_report(tmp_path, plan)
        assert (page is None) == (len(plan.heads) != shown)
        kept = Report.load(tmp_path).removal
        assert kept is not None
        assert len(kept.heads) == shown
