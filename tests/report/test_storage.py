"""A report survives the disk bit for bit, without torch; anything else gives one clear error."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path

import numpy as np
import pytest

from oattn_hub.errors import FormatError, InvalidInput, LoadError
from oattn_hub.files import sealed
from oattn_hub.report import GroupResult, Report
from oattn_hub.report.contexts import sample_arrays


def test_round_trip_is_bit_identical(two_group_report: Report, tmp_path: Path) -> None:
    loaded = Report.load(two_group_report.save(tmp_path / "a"))
    assert list(loaded.groups) == ["encoder", "cross"]
    for name, group in two_group_report.groups.items():
        for item in fields(GroupResult):
            before, after = getattr(group, item.name), getattr(loaded.groups[name], item.name)
            if item.name == "samples":
                assert sample_arrays(before).keys() == sample_arrays(after).keys()
                for path, array in sample_arrays(before).items():
                    np.testing.assert_array_equal(array, sample_arrays(after)[path], strict=True)
            elif isinstance(before, np.ndarray):
                assert before.dtype == after.dtype
                np.testing.assert_array_equal(before, after, strict=True)
            else:
                assert before == after
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
    with pytest.raises(InvalidInput, match="ranks has 3 entries, but 24 heads"):
        replace(report.group(), ranks=np.ones(3))
    with pytest.raises(InvalidInput, match="affinity has shape"):
        replace(report.group(), affinity=np.ones((3, 3)))


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
        ({"groups": [{"name": "encoder"}]}, "misses"),
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
