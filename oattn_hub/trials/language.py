"""Language models under EleutherAI's lm-eval, on its own tasks or on yours (a folder of its YAML files)."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oattn_hub.errors import InvalidInput, MissingDependency
from oattn_hub.models.load import LoadedModel
from oattn_hub.trials.pair import ModelPair
from oattn_hub.trials.scores import TrialScore, measured

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager

_ERROR = "_stderr"


def lm_eval_scores(
    pair: ModelPair, tasks: Sequence[object], *, include: str | Path | None = None, batch_size: int = 8, **options: Any
) -> list[TrialScore]:
    """Both models on the same lm-eval tasks.

    Args:
        pair: what ``open_pair`` returned.
        tasks: names, or what else ``lm_eval.simple_evaluate`` takes as tasks.
        include: a folder with task files of your own.
        batch_size: requests in one forward pass.
        options: handed to ``lm_eval.simple_evaluate``: ``limit``, ``num_fewshot`` …
    """
    try:
        import lm_eval
        from lm_eval.models.huggingface import HFLM
    except ImportError as error:
        raise MissingDependency("lm-eval is not installed: pip install 'oattn_hub[lm-eval]'.") from error
    manager = _task_manager(tasks, include)

    def judged(loaded: LoadedModel) -> Mapping[str, Any]:
        _check_language_model(loaded)
        model = HFLM(pretrained=loaded.model, tokenizer=loaded.processor, batch_size=batch_size)
        found = lm_eval.simple_evaluate(
            model, tasks=list(tasks), task_manager=manager, log_samples=False, verbosity=None, **options
        )
        return dict(found)

    return measured(_joined(judged(pair.base), judged(pair.pruned), f"lm_eval {version('lm_eval')}"))


def _task_manager(tasks: Sequence[object], include: str | Path | None) -> TaskManager:
    from lm_eval.tasks import TaskManager

    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # it explains at length that it was given a model object
    names = {task for task in tasks if isinstance(task, str)}
    if include is not None:
        if not Path(include).is_dir():
            raise InvalidInput(f"There is no folder {include}. Name the folder with your lm-eval task files.")
        own = TaskManager(include_path=str(include), include_defaults=False)
        if names <= set(own.all_tasks):  # thousands of files need not be read
            return own
    every = TaskManager(include_path=None if include is None else str(include))
    known = {*every.all_tasks, *every.all_groups, *every.all_tags}
    if unknown := sorted(name for name in names if name not in known and "*" not in name):
        raise InvalidInput(f"lm-eval has no task {unknown[0]!r}. `lm_eval ls tasks` lists them; --include adds yours.")
    return every


def _check_language_model(loaded: LoadedModel) -> None:
    if loaded.processor is None or not hasattr(loaded.model, "generate"):
        raise InvalidInput(
            f"{loaded.model_id} is a {type(loaded.model).__name__} "
            f"{'without a tokenizer' if loaded.processor is None else ''}; lm-eval asks models that write text. "
            "Use sentence-transformers' evaluators or mteb for embedders."
        )


def _joined(before: Mapping[str, Any], after: Mapping[str, Any], tool: str) -> Iterator[TrialScore]:
    for task, values in before["results"].items():
        better = before.get("higher_is_better", {}).get(task, {})
        for metric, name, value in _metrics(values):
            found = after["results"][task]
            yield TrialScore(
                tool,
                task,
                name,
                value,
                float(found[metric]),
                better.get(name),
                _error(values, metric),
                _error(found, metric),
                before.get("n-samples", {}).get(task, {}).get("effective"),
                _dataset(before.get("configs", {}).get(task, {})),
            )


def _metrics(values: Mapping[str, object]) -> Iterator[tuple[str, str, float]]:
    """Key, name and value of every metric; lm-eval writes the filter of the answers after a comma (``acc,none``)."""
    for key, value in values.items():
        name, _, chosen = key.partition(",")
        if chosen and not name.endswith(_ERROR) and isinstance(value, int | float):
            yield key, name if chosen == "none" else key, float(value)


def _error(values: Mapping[str, object], key: str) -> float | None:
    name, _, chosen = key.partition(",")
    found = values.get(f"{name}{_ERROR},{chosen}")
    return float(found) if isinstance(found, int | float) and math.isfinite(found) else None


def _dataset(config: Mapping[str, object]) -> str | None:
    """The Hub's id; ``json``, ``csv`` and the like are readers of files, and a path is somebody's disk."""
    named = config.get("dataset_path")
    return named if isinstance(named, str) and named.count("/") == 1 and not Path(named).exists() else None
