"""What a report keeps of its contexts: exact enough, small enough, and honest about what it left out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from oattn_hub.analysis.axes import contexts
from oattn_hub.errors import FormatError
from oattn_hub.report import Report
from oattn_hub.report.contexts import Axis, Context, bytes_per_entry, contexts_kept, keep_sample

RANDOM = np.random.default_rng(0)
LABELS = np.stack([np.zeros(40, dtype=int), np.arange(40)])


def _attention(n: int = 40, heads: int = 3) -> np.ndarray:
    return RANDOM.dirichlet(np.full(n, 0.1), size=(heads, n)).transpose(1, 2, 0)


def test_few_entries_are_kept_as_they_are_and_many_share_what_there_is() -> None:
    assert bytes_per_entry([(65, 65, 48)], 3) == 1.0
    assert 0.28 <= bytes_per_entry([(128, 128, 72)], 3) < 0.3
    assert bytes_per_entry([(128, 128, 1024)], 2) < 0.1


def test_probabilities_come_back_to_12_per_cent() -> None:
    X = _attention()
    sample = keep_sample(X, "probs", 0, LABELS, LABELS, per_entry=2.0)
    for head in range(3):
        back, true = sample.matrix(head), X[:, :, head]
        seen = true > 2.0**-14
        assert np.abs(back[seen] / true[seen] - 1).max() < 0.13
        assert (back[~seen] < 2.0**-13).all()


def test_scores_come_back_on_their_own_range_and_masked_entries_as_nan() -> None:
    X = RANDOM.normal(size=(40, 40, 2)) * 7
    X[np.triu_indices(40, k=1)] = np.nan
    back = keep_sample(X, "logits", 0, LABELS, LABELS, per_entry=2.0).matrix(1)
    assert np.isnan(back[np.triu_indices(40, k=1)]).all()
    below = np.tril_indices(40)
    assert np.abs(back[below] - X[:, :, 1][below]).max() < np.ptp(X[:, :, 1][below]) / 60


def test_what_does_not_fit_is_smoothed_and_the_largest_stay() -> None:
    X = _attention(128)
    labels = np.stack([np.zeros(128, dtype=int), np.arange(128)])
    sample = keep_sample(X, "probs", 0, labels, labels, per_entry=0.1)
    for head in range(3):
        assert len(sample.stream(head)) <= 0.1 * 128 * 128
        back, true = sample.matrix(head), X[:, :, head]
        top = np.unravel_index(np.argmax(true), true.shape)
        assert back[top] == pytest.approx(true[top], rel=0.13)
        assert back.sum() == pytest.approx(true.sum(), rel=0.25)  # means keep the mass


def test_long_attention_is_shortened() -> None:
    X = np.full((1500, 700, 1), 1 / 700)
    labels = [np.stack([np.zeros(n, dtype=int), np.arange(n)]) for n in (1500, 700)]
    sample = keep_sample(X, "probs", 0, *labels, per_entry=0.3)
    assert sample.shape.tolist() == [512, 512]
    assert sorted(sample.query_order.tolist()) == list(range(512))
    assert np.allclose(sample.matrix(0), 1 / 700, rtol=0.13)


def test_bytes_are_shared_out_so_that_pages_stay_small() -> None:
    small, large = [(128, 128, 72)], [(512, 512, 1024)]
    assert contexts_kept(small, 6) == 3
    assert contexts_kept(large, 6) == 2
    assert contexts_kept(small, 1) == 1
    assert bytes_per_entry(large, 2) * 512 * 512 * 1024 * 2 <= 2_000_000


def test_damaged_samples_are_refused(report: Report) -> None:
    sample = report.group().samples[0]
    bomb = np.frombuffer(__import__("zlib").compress(b"\0" * 10_000_000), np.uint8)
    for codes in (np.zeros_like(sample.codes), bomb):
        offsets = np.array([0, len(codes), *[len(codes)] * (len(sample.offsets) - 2)])
        with pytest.raises(FormatError, match="is damaged"):
            replace(sample, codes=codes, offsets=offsets).matrix(0)


def test_contexts_survive_saving(measured_report: Report, tmp_path: Path) -> None:
    measured_report.save(tmp_path)
    again = Report.load(tmp_path)
    assert again.contexts == measured_report.contexts
    first, second = (report.group().samples[1] for report in (measured_report, again))
    assert np.array_equal(first.matrix(3), second.matrix(3), equal_nan=True)


def test_the_axis_with_the_right_length_is_taken() -> None:
    encoder, decoder = Axis("input_ids", "text", 5, ("a",) * 5), Axis("decoder_input_ids", "text", 5, ("b",) * 5)
    context = Context(0, (encoder, decoder))
    assert context.axis(5) == encoder
    assert context.axis(5, decoder=True) == decoder
    assert context.axis(7) is None


class _Tokenizer:
    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return ["Ġthe", "cat", "▁sat", "Ċ"][: len(ids)]


def test_tokens_patches_and_seconds_are_found() -> None:
    model = SimpleNamespace(config=SimpleNamespace(patch_size=16))
    loaded = SimpleNamespace(processor=_Tokenizer(), model=model)
    batch = {
        "input_ids": torch.arange(4)[None],
        "pixel_values": torch.rand(1, 3, 32, 48),
        "input_features": torch.rand(1, 80, 3000),
    }
    (context,) = contexts(loaded, [batch])
    text = context.axis(4)
    assert text is not None
    assert text.tokens == (" the", "cat", " sat", "\\n")
    patches = context.axis(7)  # 2 x 3 patches and a class token
    assert patches is not None
    assert (patches.rows, patches.columns, patches.prefix) == (2, 3, 1)
    time = context.axis(1500)
    assert time is not None
    assert time.seconds == 30.0


def test_without_a_tokenizer_tokens_are_numbers() -> None:
    loaded = SimpleNamespace(processor=None, model=SimpleNamespace())
    (context,) = contexts(loaded, [{"input_ids": torch.tensor([[7, 8]])}])
    assert context.axes[0].tokens == ("7", "8")
