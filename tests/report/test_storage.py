"""A report survives the disk bit for bit, without torch; anything else gives one clear error."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import numpy as np
import pytest

from oattn_hub.errors import FormatError, InvalidInput, LoadError
from oattn_hub.files import read_tensors, sealed
from oattn_hub.report import Report
from oattn_hub.report.group_storage import group_parts


def test_round_trip_is_bit_identical(two_group_report: Report, tmp_path: Path) -> None:
    loaded = Report.load(two_group_report.save(tmp_path / "a"))
    assert list(loaded.groups) == ["encoder", "cross"]
    for name, group in two_group_report.groups.items():
        (plain, arrays), (plain_after, arrays_after) = group_parts(group), group_parts(loaded.groups[name])
        assert plain_after == plain
        assert arrays_after.keys() == arrays.keys()
        for path, array in arrays.items():
            np.testing.assert_array_equal(array, arrays_after[path], strict=True)
    assert loaded.heads == two_group_report.heads
    assert (loaded.model, loaded.settings, loaded.provenance) == (
        two_group_report.model, two_group_report.settings, two_group_report.provenance,
    )  # fmt: skip
    assert loaded.fingerprint == two_group_report.fingerprint


def test_saving_again_gives_the_same_bytes(report: Report, tmp_path: Path) -> None:
    report.save(tmp_path / "a")
    Report.load(tmp_path / "a").save(tmp_path / "b")
    for file in ("report.json", "report.safetensors", "run.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_date_and_duration_are_no_part_of_the_content(report: Report, tmp_path: Path) -> None:
    later = replace(report, provenance=replace(report.provenance, created="2030-01-01T00:00:00+00:00", seconds={}))
    assert later.fingerprint == report.fingerprint
    report.save(tmp_path / "a")
    later.save(tmp_path / "b")
    assert (tmp_path / "a/report.json").read_bytes() == (tmp_path / "b/report.json").read_bytes()
    assert Report.load(tmp_path / "b").provenance.created == "2030-01-01T00:00:00+00:00"
    assert replace(report, model=replace(report.model, revision="1" * 40)).fingerprint != report.fingerprint


def test_loads_without_torch(report: Report, tmp_path: Path) -> None:
    report.save(tmp_path)
    code = (
        "import sys; from oattn_hub.report import Report; r = Report.load(sys.argv[1]); print(len(r.heads));"
        "assert not {'torch', 'transformers', 'timm'} & set(sys.modules), 'torch was imported'"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "24"


def test_records(report: Report) -> None:
    assert [(r.layer, r.head) for r in report.heads] == [(layer, head) for layer in range(4) for head in range(6)]
    lowest = min(report.heads, key=lambda record: record.rank)
    assert (lowest.layer, lowest.head, lowest.rank, lowest.bottom_count) == (0, 3, 1.0, 5)
    assert report.stability[0].always_bottom == ((0, 3), (1, 1))
    assert report.network[0].n_layers == 4
    assert report.head(1, 1).entropy == pytest.approx(1.0)
    assert set(report.to_pandas().loc[(0, 3)].index) >= {"entropy", "rank_low", "folder", "layer_name"}


def test_is_frozen(report: Report) -> None:
    with pytest.raises(FrozenInstanceError):
        report.theory = None  # type: ignore[misc]
    with pytest.raises(TypeError):
        report.groups["new"] = report.group()  # type: ignore[index]


def test_unknown_names_list_the_known(two_group_report: Report) -> None:
    with pytest.raises(InvalidInput, match="encoder, cross"):
        two_group_report.group("decoder")
    with pytest.raises(InvalidInput, match="encoder, cross"):
        two_group_report.group()
    with pytest.raises(InvalidInput, match=r"No head 9 in layer 1.*\[0, 1, 2, 3, 4, 5\]"):
        two_group_report.head(1, 9)


def test_groups_check_their_shapes(report: Report) -> None:
    group = report.group()
    with pytest.raises(InvalidInput, match="ranks has 3 entries, but 24 heads"):
        replace(group, ranking=replace(group.ranking, ranks=np.ones(3)))
    with pytest.raises(InvalidInput, match="affinity has shape"):
        replace(group, geometry=replace(group.geometry, affinity=np.ones((3, 3))))


def test_names_in_the_files_are_those_of_every_version(two_group_report: Report, tmp_path: Path) -> None:
    """The records of a group may be cut anew; a stored report must not notice."""
    two_group_report.save(tmp_path)
    plain = json.loads((tmp_path / "report.json").read_text())["groups"][1]
    assert set(plain) == {
        "name", "n_queries", "n_keys", "fraction", "jaccard", "spearman", "layer_names", "details", "tree_spread",
        "controls", "landmarks", "pooled",
    }  # fmt: skip
    arrays = {name.split("/")[1] for name in read_tensors(tmp_path / "report.safetensors") if name.startswith("cross/")}
    assert arrays == {
        "layers", "heads", "entropies", "entropy_low", "entropy_high", "ranks", "rank_low", "rank_high",
        "bottom_counts", "top_counts", "network_entropies", "network_coefficients", "coefficients", "supports",
        "affinity", "distance_quantiles", "diffusion", "diffusion_eigenvalues", "head_labels", "sample",
    }  # fmt: skip


def test_a_report_of_the_first_version_loads(report: Report, tmp_path: Path) -> None:
    """Before details, controls, landmarks and pooling were known, their names were not in the file at all."""
    report.save(tmp_path)
    groups = json.loads((tmp_path / "report.json").read_text())["groups"]
    for name in ("details", "tree_spread", "controls", "landmarks", "pooled"):
        del groups[0][name]
    _edit(tmp_path, groups=groups)
    group = Report.load(tmp_path).group()
    assert (group.haar.details, group.haar.controls, group.geometry.landmarks, group.pooled) == (
        None,
        None,
        None,
        (1, 1),
    )
    assert Report.load(tmp_path).heads == report.heads


def _edit(folder: Path, **changes: object) -> None:
    document = json.loads((folder / "report.json").read_text())
    for name, value in changes.items():
        if value is None:
            del document[name]
        else:
            document[name] = value
    (folder / "report.json").write_text(json.dumps(sealed(document)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": 0}, "schema 0, this version reads 2; analyze again"),
        ({"schema": 99}, "schema 99, this version reads 2; update oattn_hub"),
        ({"format": "other"}, "not a report of oattn_hub"),
        ({"model": None}, "ModelInfo is None, expected an object"),
        ({"settings": {"kind": "probs"}}, "Settings lacks batches, tokens, seed"),
        ({"groups": [{"name": "encoder"}]}, "Group 'encoder' of the report lacks n_queries"),
        ({"tensors_sha256": "0"}, "damaged or belongs to another"),
    ],
)
def test_bad_json_gives_one_clear_error(
    report: Report, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    report.save(tmp_path)
    _edit(tmp_path, **changes)
    with pytest.raises(FormatError, match=message):
        Report.load(tmp_path)


def test_damaged_files(report: Report, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"report\.json is missing"):
        Report.load(tmp_path / "nowhere")
    report.save(tmp_path)
    tensors = tmp_path / "report.safetensors"
    content = bytearray(tensors.read_bytes())
    content[-5] ^= 1
    tensors.write_bytes(content)
    with pytest.raises(FormatError, match="damaged"):
        Report.load(tmp_path)
    tensors.unlink()
    with pytest.raises(LoadError, match=r"no report\.safetensors"):
        Report.load(tmp_path)
    (tmp_path / "report.json").write_text('{"format": "oattn')
    with pytest.raises(FormatError, match="not valid JSON"):
        Report.load(tmp_path)


def test_saving_into_a_file_is_refused(report: Report, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(InvalidInput, match="is a file"):
        report.save(tmp_path / "taken")
    assert (tmp_path / "taken").read_text() == "mine"
