"""Reports and checkpoints, written to a folder and published from there."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Unpack

from oattn_hub.errors import FormatError, InvalidInput
from oattn_hub.files import atomic_path, exists_here, read_json, storage_errors, write_json, write_text
from oattn_hub.files.documents import blamed_on
from oattn_hub.hub.card import DATASET, report_readme
from oattn_hub.hub.checkpoint_card import checkpoint_readme
from oattn_hub.hub.content import content_ids
from oattn_hub.hub.publish import Publication, PublishOptions, publish_folder
from oattn_hub.hub.selection import copy_files, included
from oattn_hub.models.identify import license_of
from oattn_hub.records import MANIFEST

if TYPE_CHECKING:
    from oattn_hub.pruning import PrunedModel
    from oattn_hub.pruning.manifest import Manifest
    from oattn_hub.report import Report
    from oattn_hub.report.evaluation import EvaluationSection

_EVALUATION = "evaluation.json"
_BENCHMARKS = "benchmarks.json"


def push_report(
    report: Report,
    repo_id: str,
    *,
    base_model: str | None = None,
    commit_message: str | None = None,
    dry_run: str | Path | None = None,
    **options: Unpack[PublishOptions],
) -> Publication:
    """Publish a report in one commit: data, card, figures and page.

    ``base_model`` is what the model is called on the Hub, if it was loaded from a folder; ``hub variants`` looks there.
    ``options`` are those of :func:`publish_folder`: ``private``, ``revision``, ``create_pr``, ``parent_commit``,
    ``token``, ``endpoint``. With ``dry_run`` the exact folder is written there and nothing is sent.
    """
    message = commit_message or f"Head report of {report.model.id}"
    with _folder(dry_run) as folder:
        write_report_folder(report, folder, repo_id, base_model)
        return _publish(folder, repo_id, "report", message, dry_run, options)


def push_checkpoint(
    pruned: PrunedModel,
    repo_id: str,
    *,
    variant: str = "cut",
    verify: bool = True,
    license: str | None = None,
    evaluation: EvaluationSection | None = None,
    base_model: str | None = None,
    commit_message: str | None = None,
    dry_run: str | Path | None = None,
    **options: Unpack[PublishOptions],
) -> Publication:
    """Publish a pruned checkpoint in one commit: weights, config, plan, modeling file and card.

    ``license`` is the base model's, if its card does not say it; ``evaluation`` (``report.evaluation``) is what the
    card compares with; ``verify=False`` publishes a checkpoint that was not loaded again, and the card says so.
    Other options as for :func:`push_report`.
    """
    from oattn_hub.pruning.checkpoint import save_checkpoint

    with _folder(dry_run) as folder:
        manifest = save_checkpoint(pruned, folder, variant, verify=verify)
        write_checkpoint_card(folder, repo_id, license, evaluation or pruned.evaluation, base_model, manifest)
        return _publish(folder, repo_id, "checkpoint", commit_message or _message(manifest), dry_run, options)


def push_folder(
    source: str | Path,
    repo_id: str,
    *,
    report: str | Path | None = None,
    include: Iterable[str] = (),
    base_model: str | None = None,
    commit_message: str | None = None,
    dry_run: str | Path | None = None,
    **options: Unpack[PublishOptions],
) -> Publication:
    """Publish a folder that ``report.save`` or ``pruned.save_pretrained`` wrote: what it is made of, nothing else.

    ``report`` is the folder of the report that a checkpoint's card takes its evaluation from; ``include`` names
    further files of the folder, or patterns such as ``notes/*.md``; ``base_model`` as for :func:`push_report`.
    """
    more = included(Path(source), include)
    if kind_of(Path(source)) == "report":
        found = _load_report(source)
        with _folder(dry_run) as folder:
            copy_files(Path(source), folder, more)
            write_report_folder(found, folder, repo_id, base_model)
            message = commit_message or f"Head report of {found.model.id}"
            return _publish(folder, repo_id, "report", message, dry_run, options)
    from oattn_hub.pruning import read_manifest

    manifest = read_manifest(Path(source))  # a checkpoint that was changed since is not published
    with _folder(dry_run) as folder:
        copy_files(Path(source), folder, [*manifest.names, MANIFEST, *more])
        evaluation = _load_report(report).evaluation if report is not None else None
        write_checkpoint_card(folder, repo_id, evaluation=evaluation, base_model=base_model, manifest=manifest)
        return _publish(folder, repo_id, "checkpoint", commit_message or _message(manifest), dry_run, options)


def kind_of(folder: Path) -> str:
    """ "report" or "checkpoint", by what lies in the folder."""
    for name, kind in ((MANIFEST, "checkpoint"), ("report.json", "report")):
        if (folder / name).is_file():
            return kind
    raise FormatError(f"{folder} holds neither a report (report.json) nor a pruned checkpoint ({MANIFEST}).")


def write_report_folder(
    report: Report, folder: Path, repo_id: str | None = None, base_model: str | None = None
) -> Path:
    """Everything a results repo holds."""
    report = shareable(report)
    report.save(folder)
    report.write_page(folder / "report.html")
    figures = report.save_figures(folder / "figures")
    write_text(folder / "README.md", report_readme(report, figures, repo_id, base_model))
    return folder


def write_checkpoint_card(
    folder: Path,
    repo_id: str | None = None,
    license: str | None = None,
    evaluation: EvaluationSection | None = None,
    base_model: str | None = None,
    manifest: Manifest | None = None,
) -> Path:
    """Add the card to a checkpoint's folder.

    ``evaluation`` serves where the folder has none of its own; ``manifest`` is what was read of it already.
    """
    from oattn_hub.pruning.manifest import manifest_of
    from oattn_hub.report.evaluation import EvaluationSection
    from oattn_hub.report.plot import evaluation_figures, render

    if manifest is None:
        manifest = manifest_of(folder)
    if (folder / _EVALUATION).is_file():  # saved with the checkpoint
        evaluation = EvaluationSection.from_json(read_json(folder / _EVALUATION))
    elif evaluation is not None:
        write_json(folder / _EVALUATION, evaluation.to_json())
    license = license or license_of(manifest.plan.model.source)
    figures = evaluation_figures(evaluation)
    for figure in figures:
        with atomic_path(folder / "figures" / f"{figure.name}.png") as draft:
            draft.write_bytes(render(figure))
    with blamed_on(folder / MANIFEST):
        readme = checkpoint_readme(
            folder,
            _shareable_manifest(folder, manifest),
            repo_id=repo_id,
            license=license,
            evaluation=evaluation,
            figures=[figure.name for figure in figures],
            base_model=base_model,
        )
    write_text(folder / "README.md", readme)
    return folder / "README.md"


def _shareable_manifest(folder: Path, manifest: Manifest) -> Manifest:
    """Nobody else can load from a folder on this disk, nor need they know its name."""
    model = replace(manifest.plan.model, source=_public(manifest.plan.model.source))
    manifest = replace(manifest, plan=replace(manifest.plan, model=model))
    manifest.write(folder)
    return manifest


def shareable(report: Report) -> Report:
    """The same for a report: of folders on this disk only the last name is left."""
    model, made = report.model, report.provenance
    options = {name: _last_name(value) if isinstance(value, str) else value for name, value in model.options.items()}
    command, data = made.command, " ".join(map(_last_name, made.data.split(" ")))
    if command.startswith("oattn "):
        command = shlex.join(map(_last_name, _words(command)))
    return replace(
        report,
        model=replace(model, source=_public(model.source), options=options),
        provenance=replace(made, command=command, data=data),
    )


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # no command that a shell would take
        return command.split()


def _public(source: str | None) -> str | None:
    return None if source is None or exists_here(source) else source


def _last_name(word: str) -> str:
    if word.startswith(DATASET):
        return DATASET + _last_name(word.removeprefix(DATASET))
    return Path(word).name if Path(word).is_absolute() or exists_here(word) else word


def card_of(source: str | Path, repo_id: str | None = None, base_model: str | None = None) -> str:
    """The card of a report's or a checkpoint's folder, without a network and without drawing its figures."""
    if kind_of(Path(source)) == "report":
        from oattn_hub.report.plot import planned_figures

        report = shareable(_load_report(source))
        figures = [Path(f"{figure.name}.png") for figure in planned_figures(report)]
        return report_readme(report, figures, repo_id, base_model)
    with TemporaryDirectory(prefix="oattn-") as temporary:
        return write_card(source, Path(temporary) / "card", repo_id, base_model).read_text(encoding="utf-8")


def write_card(source: str | Path, target: Path, repo_id: str | None = None, base_model: str | None = None) -> Path:
    """Write the card and the figures that it shows to a new or empty folder; returns the README."""
    with _folder(target) as folder:
        if kind_of(Path(source)) == "report":
            report = shareable(_load_report(source))
            figures = report.save_figures(folder / "figures")
            write_text(folder / "README.md", report_readme(report, figures, repo_id, base_model))
            return folder / "README.md"
        names = (MANIFEST, "config.json", _EVALUATION, _BENCHMARKS)
        for name in (name for name in names if (Path(source) / name).is_file()):
            with storage_errors(folder / name):
                shutil.copyfile(Path(source) / name, folder / name)
        return write_checkpoint_card(folder, repo_id, base_model=base_model)


def _load_report(folder: str | Path) -> Report:
    from oattn_hub.report import Report

    return Report.load(folder)


def _message(manifest: Manifest) -> str:
    plan = manifest.plan
    name = plan.model.id or manifest.class_name
    if not plan.heads:
        return f"{name}, no head removed"
    return f"{name} without {len(plan.heads)} of {plan.n_heads} attention heads"


def _publish(
    folder: Path, repo_id: str, kind: str, message: str, dry_run: str | Path | None, options: PublishOptions
) -> Publication:
    if dry_run is None:
        return publish_folder(folder, repo_id, kind, message=message, **options)
    sizes = {path: content.size for path, content in content_ids(folder).items()}
    revision = options.get("revision") or "main"
    return Publication(repo_id, kind, "", revision, message, sizes, changed=False, folder=str(folder))


@contextmanager
def _folder(named: str | Path | None) -> Iterator[Path]:
    """Where to write: a temporary folder, or the named one, which must be empty."""
    if named is None:
        with TemporaryDirectory(prefix="oattn-") as temporary:
            yield Path(temporary)
        return
    folder = Path(named)
    if folder.exists() and any(folder.iterdir()):
        raise InvalidInput(f"{folder} is not empty. Name a new or an empty folder.")
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    yield folder
