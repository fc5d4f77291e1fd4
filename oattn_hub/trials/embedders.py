"""Embedders under sentence-transformers' own evaluators and under mteb."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from oattn_hub.errors import InvalidInput, LoadError, MissingDependency
from oattn_hub.models.load import LoadedModel
from oattn_hub.pruning.belongings import base_folder
from oattn_hub.trials.pair import ModelPair
from oattn_hub.trials.scores import TrialScore, measured

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.evaluation import EmbeddingSimilarityEvaluator

_COLUMNS = ("sentence1", "sentence2", "score")


def sentence_scores(pair: ModelPair, evaluators: Iterable[Any]) -> list[TrialScore]:
    """Both models under evaluators of sentence-transformers, e.g. ``EmbeddingSimilarityEvaluator``.

    A CSV file with the columns sentence1, sentence2 and score may stand for an evaluator of similarity.
    """
    base, pruned = _sentence_models(pair)
    tool, scores = f"sentence-transformers {version('sentence-transformers')}", []
    for given in evaluators:
        evaluator = similarity_evaluator(Path(given)) if isinstance(given, str | Path) else given
        before, after = evaluator(base), evaluator(pruned)
        task = getattr(evaluator, "name", "") or type(evaluator).__name__
        better, samples = getattr(evaluator, "greater_is_better", None), len(getattr(evaluator, "scores", ())) or None
        for name in before:
            metric = name.removeprefix(f"{task}_")
            score = TrialScore(tool, task, metric, float(before[name]), float(after[name]), better, samples=samples)
            scores.append(score)
    return measured(scores)


def mteb_scores(pair: ModelPair, tasks: Sequence[object]) -> list[TrialScore]:
    """The main score of both models on tasks of mteb, by name or as task objects; nothing is read from its cache."""
    try:
        import mteb
    except ImportError as error:
        raise MissingDependency("mteb is not installed: pip install 'oattn_hub[mteb]'.") from error
    found = [task for each in tasks for task in _mteb_tasks(mteb, each)]
    judged = [
        mteb.evaluate(model, found, cache=None, show_progress_bar=False).task_results
        for model in _sentence_models(pair)
    ]
    return measured(
        score
        for task, before, after in zip(found, *judged, strict=True)
        for score in _main_scores(f"mteb {version('mteb')}", task, before.scores, after.scores)
    )


def _mteb_tasks(mteb: ModuleType, task: object) -> list[Any]:
    if not isinstance(task, str):
        return [task]
    try:
        return [mteb.get_task(task)]
    except KeyError as error:
        raise InvalidInput(f"mteb has no task {task!r}. `mteb available-tasks` lists them.") from error


def _main_scores(tool: str, task: Any, before: Any, after: Any) -> Iterator[TrialScore]:
    """One score a split and language; their names are left out where there is one of them."""
    parts = [(split, number) for split, subsets in before.items() for number in range(len(subsets))]
    dataset = task.metadata.dataset.get("path")
    for split, number in parts:
        mine, other = before[split][number], after[split][number]
        where = "" if len(parts) == 1 else f" ({split}, {mine.get('hf_subset', number)})"
        yield TrialScore(
            tool,
            f"{task.metadata.name}{where}",
            task.metadata.main_score,
            float(mine["main_score"]),
            float(other["main_score"]),
            higher_is_better=True,
            dataset=dataset if isinstance(dataset, str) and dataset.count("/") == 1 else None,
        )


def similarity_evaluator(file: Path) -> EmbeddingSimilarityEvaluator:
    """sentence-transformers' evaluator of similarity on the pairs of a CSV file."""
    from sentence_transformers.evaluation import EmbeddingSimilarityEvaluator

    if not file.is_file():
        raise LoadError(f"There is no file {file}. Give a CSV file with the columns {', '.join(_COLUMNS)}.")
    with file.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    if not rows or not set(_COLUMNS) <= rows[0].keys():
        found = ", ".join(rows[0]) if rows else "nothing"
        raise InvalidInput(f"{file} has {found}; it needs the columns {', '.join(_COLUMNS)}, and rows.")
    try:
        scores = [float(row["score"]) for row in rows]
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"A score in {file} is no number ({error}). Give a number for every pair.") from error
    firsts, seconds = ([row[name] or "" for row in rows] for name in _COLUMNS[:2])
    return EmbeddingSimilarityEvaluator(firsts, seconds, scores, name=file.stem)


def _sentence_models(pair: ModelPair) -> tuple[SentenceTransformer, SentenceTransformer]:
    """The base model as sentence-transformers loads it, and the same pooling around the pruned transformer."""
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise MissingDependency("sentence-transformers is not installed: pip install sentence-transformers.") from error
    folder = base_folder(pair.base)
    if folder is None:
        raise InvalidInput(f"{pair.base.model_id} has no folder that says how it pools tokens. Name one with --model.")
    models = [_around(SentenceTransformer(str(folder), device="cpu"), loaded) for loaded in (pair.base, pair.pruned)]
    return models[0], models[1]


def _around(tool: SentenceTransformer, loaded: LoadedModel) -> SentenceTransformer:
    """Put a model into the place of the one that sentence-transformers loaded; no code of a checkpoint is run."""
    from transformers import PreTrainedModel

    name, present = next((n, m) for n, m in tool[0].named_children() if isinstance(m, PreTrainedModel))
    model = loaded.model
    if type(model) is not type(present) and isinstance(model, PreTrainedModel):
        model = model.base_model  # without its task's head
    if type(model) is not type(present):
        raise InvalidInput(
            f"sentence-transformers reads {loaded.model_id} as a {type(present).__name__}, and this is a "
            f"{type(model).__name__}. Prune the model as sentence-transformers loads it (load_model(…, task='base'))."
        )
    setattr(tool[0], name, model)
    return tool.eval()
