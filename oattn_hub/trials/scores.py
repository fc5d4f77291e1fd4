"""What a tool measured on both models, kept beside the checkpoint it is about."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from oattn_hub.codec import decode, encode
from oattn_hub.files import read_sealed, sha256_file, write_sealed
from oattn_hub.pruning.manifest import Manifest, read_manifest

BENCHMARKS = "benchmarks.json"
SCHEMA = 1


@dataclass(frozen=True)
class TrialScore:
    """One metric of one task: the base model's value and the pruned model's.

    Attributes:
        tool: who measured, with its version: ``lm_eval 0.4.13``.
        task: as the tool calls it.
        metric: as the tool calls it.
        before: of the base model.
        after: of the pruned model.
        higher_is_better: None where the tool does not say.
        before_error: standard error of ``before``, where the tool gives one.
        after_error: the same of ``after``.
        samples: how many examples were asked, where the tool says so.
        dataset: the Hub's id of the data, where the tool names one.
    """

    tool: str
    task: str
    metric: str
    before: float
    after: float
    higher_is_better: bool | None = None
    before_error: float | None = None
    after_error: float | None = None
    samples: int | None = None
    dataset: str | None = None

    @property
    def name(self) -> tuple[str, str, str]:
        """What a later score of the same thing replaces: the tool without its version, task and metric."""
        return self.tool.split(" ")[0], self.task, self.metric


def measured(scores: Iterable[TrialScore]) -> list[TrialScore]:
    """The scores that are numbers of both models; a correlation of constants, for one, is none."""
    return [score for score in scores if math.isfinite(score.before) and math.isfinite(score.after)]


def kept_scores(folder: Path, manifest: Manifest) -> list[TrialScore]:
    """The scores of the checkpoint that ``manifest`` describes; a file of an earlier checkpoint is not listed there."""
    if BENCHMARKS not in manifest.files:
        return []
    return [decode(TrialScore, entry) for entry in read_sealed(folder / BENCHMARKS)["scores"]]


def keep_scores(folder: str | Path, scores: Iterable[TrialScore]) -> Path:
    """Add scores to a checkpoint's folder, where they replace earlier ones of the same name; returns their file."""
    where = Path(folder)
    manifest = read_manifest(where)
    known = {score.name: score for score in (*kept_scores(where, manifest), *scores)}
    write_sealed(where / BENCHMARKS, {"schema": SCHEMA, "scores": [encode(score) for score in known.values()]})
    names = sorted({*manifest.names, BENCHMARKS})
    hashes = {**manifest.sha256, BENCHMARKS: sha256_file(where / BENCHMARKS)}
    replace(manifest, files=tuple(names), sha256=hashes).write(where)
    return where / BENCHMARKS
