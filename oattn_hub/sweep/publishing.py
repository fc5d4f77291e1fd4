"""A sweep on the Hub: its leaderboard as a static Space, its reports as repos, and all of them as a Collection."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Unpack

from oattn_hub.errors import InvalidInput
from oattn_hub.files import write_text
from oattn_hub.hub.client import check_repo_id
from oattn_hub.hub.collect import RepoType, collect_repos
from oattn_hub.hub.publish import Publication, PublishOptions
from oattn_hub.hub.push import push_report, shareable
from oattn_hub.hub.space import INDEX, SpaceOptions, publish_space
from oattn_hub.report import Report
from oattn_hub.sweep.leaderboard import TABLE_FILE, Leaderboard, Row
from oattn_hub.sweep.state import SETTINGS_FILE, SweepFolder


def is_sweep(folder: str | Path) -> bool:
    """Whether ``oattn sweep`` wrote the folder."""
    return (Path(folder) / SETTINGS_FILE).is_file()


def publish_leaderboard(folder: str | Path, repo_id: str, **options: Unpack[SpaceOptions]) -> Publication:
    """Publish the leaderboard and every report's page as one static Space; options as for ``publish_space``."""
    sweep = SweepFolder(folder)
    board = _public(_board(sweep))
    with TemporaryDirectory() as scratch:
        target = Path(scratch)
        write_text(target / INDEX, board.to_html())
        write_text(target / TABLE_FILE, board.to_csv())
        for row in board.rows:
            shareable(Report.load(sweep.root / Path(row.page).parent)).write_page(target / row.page)
        return publish_space(target, repo_id, board.title, [row.model for row in board.rows], **options)


def publish_reports(folder: str | Path, namespace: str, **options: Unpack[PublishOptions]) -> Iterator[Publication]:
    """Publish every report of a sweep to a repo of its own; options as for ``push_report``."""
    sweep = SweepFolder(folder)
    for row in _board(sweep).rows:
        report = Report.load(sweep.root / Path(row.page).parent)
        yield push_report(report, f"{namespace}/{report_name(row)}", **options)


def publish_collection(
    folder: str | Path, namespace: str, title: str, space: str | None = None, **options: Unpack[PublishOptions]
) -> str:
    """Publish every report and collect them, and the Space of the leaderboard if there is one; returns the address."""
    check_repo_id(f"{namespace}/x")
    repos: list[tuple[str, RepoType]] = [(space, "space")] if space else []
    repos += [(done.repo_id, "model") for done in publish_reports(folder, namespace, **options)]
    return collect_repos(title, namespace, repos, private=bool(options.get("private")), token=options.get("token"))


def report_name(row: Row) -> str:
    """The repo of a report: the model's owner and name, or a folder's name with its mark; never a path."""
    name = Path(row.page).parent.name if Path(row.model).is_absolute() else row.model
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")
    return f"{re.sub(r'[-.]{2,}', '-', plain)[-80:].strip('-.')}-heads"


def _board(sweep: SweepFolder) -> Leaderboard:
    board = Leaderboard.of(sweep)
    if not board.rows:
        raise InvalidInput(f"{sweep.root} has no finished report yet. Run oattn sweep with it as --out first.")
    return board


def _public(board: Leaderboard) -> Leaderboard:
    """Without the folders of this machine: models by their last name, and no failures, whose words name files."""
    rows = tuple(replace(row, model=_public_name(row.model)) for row in board.rows)
    return replace(board, rows=rows, failures={})


def _public_name(model: str) -> str:
    return Path(model).name if Path(model).is_absolute() else model
