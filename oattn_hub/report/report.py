"""The report: what was found about a model's heads, as data that needs neither the model nor torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

from oattn_hub.errors import InvalidInput, MissingDependency
from oattn_hub.records import ModelInfo, Provenance, Settings
from oattn_hub.report.answer import Removal
from oattn_hub.report.contexts import Context
from oattn_hub.report.group import GroupResult
from oattn_hub.report.records import HeadRecord, NetworkRecord, StabilityRecord

if TYPE_CHECKING:
    import pandas as pd

    from oattn_hub.hub.publish import Publication
    from oattn_hub.pruning import PruningPlan
    from oattn_hub.report.coefficients import Coefficient
    from oattn_hub.report.evaluation import EvaluationSection
    from oattn_hub.report.head_table import Cell
    from oattn_hub.report.plot import ReportPlots
    from oattn_hub.report.theory import TheorySection
    from oattn_hub.report.validation import ValidationSection


@dataclass(frozen=True, eq=False)
class Report:
    """Which heads matter, how sure we are, and what the network looks like. Frozen; ``with_…`` gives a new one."""

    model: ModelInfo
    settings: Settings
    provenance: Provenance
    groups: Mapping[str, GroupResult]
    theory: TheorySection | None = field(default=None, repr=False)
    evaluation: EvaluationSection | None = field(default=None, repr=False)
    removal: Removal | None = field(default=None, repr=False)
    contexts: tuple[Context, ...] = field(default=(), repr=False)
    validation: ValidationSection | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.groups:
            raise InvalidInput("A report needs at least one group of heads; none was given.")
        object.__setattr__(self, "groups", MappingProxyType(dict(self.groups)))

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}: {group.n_heads} heads" for name, group in self.groups.items())
        return f"Report({self.model.id!r}, {self.settings.kind}, {self.settings.batches} batches; {sizes})"

    @cached_property
    def heads(self) -> tuple[HeadRecord, ...]:
        """One record per head of all groups, in model order."""
        records = [record for group in self.groups.values() for record in group.head_records()]
        return tuple(sorted(records, key=lambda record: (record.layer, record.head)))

    @cached_property
    def network(self) -> tuple[NetworkRecord, ...]:
        """One record per group: its network entropy in each batch."""
        return tuple(group.network_record() for group in self.groups.values())

    @cached_property
    def stability(self) -> tuple[StabilityRecord, ...]:
        """One record per group: how far the batches agree."""
        return tuple(group.stability_record() for group in self.groups.values())

    def group(self, name: str | None = None) -> GroupResult:
        """The group of that name; the name may be left out if there is only one."""
        if name is None and len(self.groups) == 1:
            return next(iter(self.groups.values()))
        if name is None or name not in self.groups:
            raise InvalidInput(f"No group {name!r} in this report; choose one of {', '.join(self.groups)}.")
        return self.groups[name]

    def head(self, layer: int, head: int) -> HeadRecord:
        """The record of one head."""
        for record in self.heads:
            if (record.layer, record.head) == (layer, head):
                return record
        raise InvalidInput(f"No head {head} in layer {layer}; layers are {sorted({r.layer for r in self.heads})}.")

    def with_theory(self, section: TheorySection) -> Self:
        """This report with a theory section."""
        return replace(self, theory=section)

    def with_evaluation(self, section: EvaluationSection) -> Self:
        """This report with an evaluation section."""
        return replace(self, evaluation=section)

    def with_validation(self, section: ValidationSection) -> Self:
        """This report with a validation section."""
        return replace(self, validation=section)

    def with_plan(self, plan: PruningPlan) -> Self:
        """This report with the heads and the cost of a plan, which is what it then answers first."""
        known = {(record.layer, record.head) for record in self.heads}
        if strange := sorted(set(plan.heads) - known):
            raise InvalidInput(f"The plan removes head {strange[0]}, which this report does not know; plan from it.")
        return replace(self, removal=Removal.of_plan(plan))

    @property
    def plot(self) -> ReportPlots:
        """The figures, for notebooks: ``report.plot.heads()``, ``.tree()``, ``.diffusion()`` …"""
        from oattn_hub.report.plot import ReportPlots

        return ReportPlots(self)

    def _repr_html_(self) -> str:
        """What a notebook shows: the answer and the map."""
        from oattn_hub.report.notebook import report_html

        return report_html(self)

    def coefficients(self, layer: int, head: int) -> list[Coefficient]:
        """The head's Haar coefficients on the first context, each with its query folder and its key folder."""
        from oattn_hub.report.coefficients import head_coefficients

        return head_coefficients(self.group(self.head(layer, head).group), layer, head)

    def findings(self) -> list[str]:
        """The report in plain sentences."""
        from oattn_hub.report.findings import findings

        return findings(self)

    def to_pandas(self) -> pd.DataFrame:
        """One row per head, indexed by (layer, head): verdict, measured cost, entropy with intervals, rank, folder."""
        try:
            import pandas as pd
        except ImportError as error:
            raise MissingDependency("to_pandas needs pandas: pip install 'oattn_hub[pandas]'.") from error
        columns, rows = self.table()
        return pd.DataFrame(rows, columns=columns).set_index(["layer", "head"])

    def table(self) -> tuple[list[str], list[list[Cell]]]:
        """Column names and one row per head in model order; the page, ``oattn heads`` and pandas show this table."""
        from oattn_hub.report.head_table import head_table

        return head_table(self)

    def save(self, folder: str | Path) -> Path:
        """Write ``report.json``, ``report.safetensors`` and ``run.json``; returns the folder."""
        from oattn_hub.report.storage import save_report

        return save_report(self, Path(folder))

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read a saved report; needs no torch."""
        from oattn_hub.report.storage import read_parts

        return cls(**read_parts(Path(folder)))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of everything in the report but the date and the duration of the run."""
        from oattn_hub.report.storage import report_fingerprint

        return report_fingerprint(self)

    def write_page(self, path: str | Path) -> Path:
        """Write the self-contained page; returns its path."""
        from oattn_hub.report.page import write_page

        return write_page(self, Path(path))

    def save_figures(self, folder: str | Path, dark: bool = False) -> list[Path]:
        """Draw every figure as PNG; returns the files."""
        from oattn_hub.report.plot import save_figures

        return save_figures(self, Path(folder), dark)

    def show(self) -> Path:
        """Open the page in the browser; returns the file that was opened."""
        from oattn_hub.report.page import show_page

        return show_page(self)

    def plan(self, *args: Any, **kwargs: Any) -> PruningPlan:
        """Choose heads to remove; see :func:`oattn_hub.pruning.plan_from_report`."""
        from oattn_hub.pruning import plan_from_report

        return plan_from_report(self, *args, **kwargs)

    def validate(self, *args: Any, **kwargs: Any) -> Self:
        """This report put to the test, with the result in ``validation``; see :func:`oattn_hub.pruning.validate`."""
        from oattn_hub.pruning import validate

        return self.with_validation(validate(self, *args, **kwargs))

    def push_to_hub(self, repo_id: str, **options: Any) -> Publication:
        """Publish the report; see :func:`oattn_hub.hub.push_report`."""
        from oattn_hub.hub import push_report

        return push_report(self, repo_id, **options)
