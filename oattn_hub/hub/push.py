"""Reports and checkpoints, written to a folder and published from there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from oattn_hub.errors import InvalidInput
from oattn_hub.files import write_text
from oattn_hub.hub.card import report_readme
from oattn_hub.hub.content import content_ids
from oattn_hub.hub.publish import Publication, publish_folder

if TYPE_CHECKING:
    from oattn_hub.report import Report


def push_report(
    report: Report,
    repo_id: str,
    *,
    commit_message: str | None = None,
    dry_run: str | Path | None = None,
    **options: Any,
) -> Publication:
    """Publish a report in one commit: data, card, figures and page.

    ``options`` are those of :func:`publish_folder`: ``private``, ``revision``, ``create_pr``, ``parent_commit``,
    ``token``, ``endpoint``. With ``dry_run`` the exact folder is written there and nothing is sent.
    """
    message = commit_message or f"Head report of {report.model.id}"
    with _folder(dry_run) as folder:
        write_report_folder(report, folder, repo_id)
        return _publish(folder, repo_id, "report", message, dry_run, options)


def write_report_folder(report: Report, folder: Path, repo_id: str | None = None) -> Path:
    """Everything a results repo holds."""
    report.save(folder)
    report.write_page(folder / "report.html")
    figures = report.save_figures(folder / "figures")
    write_text(folder / "README.md", report_readme(report, figures, repo_id))
    return folder


def _publish(
    folder: Path, repo_id: str, kind: str, message: str, dry_run: str | Path | None, options: dict[str, Any]
) -> Publication:
    if dry_run is None:
        return publish_folder(folder, repo_id, kind, message=message, **options)
    sizes = {path: content.size for path, content in content_ids(folder).items()}
    revision = options.get("revision") or "main"
    return Publication(repo_id, kind, "", revision, message, sizes, changed=False, folder=str(folder))


@contextmanager
def _folder(dry_run: str | Path | None) -> Iterator[Path]:
    """Where to write what is published: a temporary folder, or the one of the dry run, which must be empty."""
    if dry_run is None:
        with TemporaryDirectory(prefix="oattn-") as temporary:
            yield Path(temporary)
        return
    folder = Path(dry_run)
    if folder.exists() and any(folder.iterdir()):
        raise InvalidInput(f"{folder} is not empty. Name an empty or new folder for the dry run.")
    folder.mkdir(parents=True, exist_ok=True)
    yield folder
