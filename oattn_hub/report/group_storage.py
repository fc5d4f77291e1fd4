"""A group of heads as a JSON part and named arrays, and back.

The names lie flat in the file, whichever record they belong to, as reports have had them from the first version on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeVar

import numpy as np

from oattn_hub.codec import decode, encode
from oattn_hub.errors import FormatError
from oattn_hub.report.contexts import sample_arrays, samples_from
from oattn_hub.report.group import GroupResult
from oattn_hub.report.measured import HaarEntropies, HeadGeometry, Ranking
from oattn_hub.report.records import Controls
from oattn_hub.types import Array, Json

Part = TypeVar("Part", HeadGeometry, HaarEntropies, Ranking)

_PARTS = ("geometry", "haar", "ranking")
_WHOLE_NUMBERS = ("layers", "heads", "bottom_counts", "top_counts", "head_labels")
_LARGEST = 2**53  # what JSON keeps exactly
_ONE = 1 + 1e-9  # a correlation may be rounded


@dataclass(frozen=True)
class _Plain:
    """What of a group is no array; what was not measured is null in the file."""

    name: str
    n_queries: int
    n_keys: int
    layer_names: tuple[str, ...]
    fraction: float
    jaccard: float = math.nan
    spearman: float = math.nan
    controls: Controls | None = None
    pooled: tuple[int, int] = (1, 1)


def group_parts(group: GroupResult) -> tuple[dict[str, Json], dict[str, Array]]:
    """The JSON part and the arrays of the group; :func:`group_from` takes both back."""
    records = (group, *(getattr(group, name) for name in _PARTS))
    values = {item.name: getattr(record, item.name) for record in records for item in fields(record)}
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    rest = {name: value for name, value in values.items() if name not in (*arrays, *_PARTS, "samples")}
    plain = {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in rest.items()}
    return {name: encode(value) for name, value in plain.items()}, {**arrays, **sample_arrays(group.samples)}


def group_from(plain: Mapping[str, Json], arrays: Mapping[str, Array]) -> GroupResult:
    """The group back from :func:`group_parts`; anything that is not of its kind is refused."""
    place = f"Group {str(plain.get('name'))[:60]!r} of the report"
    read = decode(_Plain, {name: value for name, value in plain.items() if value is not None}, place)
    counts = (read.n_queries, read.n_keys, *read.pooled)
    shares = (read.fraction, read.jaccard, read.spearman)
    if not all(0 < count <= _LARGEST for count in counts) or any(abs(share) > _ONE for share in shares):
        raise FormatError(f"{place} is damaged: its counts are {counts}, its shares and correlations {shares}.")
    _check_arrays(arrays, place)
    values = {**vars(read), **arrays}
    return GroupResult(
        name=read.name,
        n_queries=read.n_queries,
        n_keys=read.n_keys,
        layer_names=read.layer_names,
        layers=arrays["layers"],
        heads=arrays["heads"],
        geometry=_part(HeadGeometry, values, place),
        haar=_part(HaarEntropies, values, place),
        ranking=_part(Ranking, values, place),
        samples=samples_from(arrays),
        pooled=read.pooled,
    )


def _part(kind: type[Part], values: Mapping[str, Any], place: str) -> Part:
    """One of the three records, out of everything that was read."""
    required = [item.name for item in fields(kind) if item.default is MISSING]
    if missing := [name for name in required if name not in values]:
        raise FormatError(f"{place} lacks {', '.join(missing)}.")
    return kind(**{item.name: values[item.name] for item in fields(kind) if item.name in values})


def _check_arrays(arrays: Mapping[str, Array], place: str) -> None:
    for name in _WHOLE_NUMBERS:
        if name not in arrays or arrays[name].dtype.kind not in "iu":
            raise FormatError(f"{place} is damaged: {name} holds no whole numbers.")
    labels = arrays["head_labels"]
    if labels.ndim != 2 or min(labels.shape) < 1 or labels.min() < 0:
        raise FormatError(f"{place} is damaged: head_labels is no tree.")
