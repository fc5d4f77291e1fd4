"""The theory on real attention, where softmax of the captured scores must be the captured attention."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from oattn_hub.analysis.theory import build_theory_section
from oattn_hub.attention import AttentionStore, calibration_inputs, capture_inputs, load_model
from oattn_hub.report.theory import TheorySection

pytestmark = pytest.mark.slow


def _first_heads(store: AttentionStore, count: int) -> TheorySection:
    scores, probs = (store.tensor(0, kind)[:, :, :count] for kind in ("scores", "probs"))
    return build_theory_section(scores, probs, store.heads()[:count], group=store.groups[0])


def test_an_encoder(minilm_folder: Path, tmp_path: Path) -> None:
    loaded = load_model(str(minilm_folder))
    inputs = calibration_inputs(loaded, batches=1, tokens=64)
    store = capture_inputs(loaded, inputs, tmp_path / "store", kinds=("scores", "probs"))
    section = _first_heads(store, 12)
    assert [(head.layer, head.head) for head in section.heads] == [(0, head) for head in range(12)]
    assert section.groups[0].masked == 0
    by_source = {agreement.source: agreement for agreement in section.groups[0].agreements}
    # without a mask, softmax of the captured scores is the captured attention, and is organised alike
    assert by_source["probs"].head_affinity == pytest.approx(by_source["softmax"].head_affinity, abs=1e-3)
    for head in section.heads:
        assert head.error < head.error_as_printed
        assert 0 < head.error < 1


def test_a_causal_model(smollm_folder: Path, tmp_path: Path) -> None:
    loaded = load_model(str(smollm_folder), gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf")
    inputs = calibration_inputs(loaded, batches=1, tokens=48)
    store = capture_inputs(loaded, inputs, tmp_path / "store", kinds=("scores", "probs"))
    section = _first_heads(store, 9)
    assert section.groups[0].masked == pytest.approx(48 * 47 / 2 / 48**2)
    assert "before the mask" in section.findings[-1]
    assert np.isfinite([head.holder for head in section.heads]).all()
