"""Peak memory of a capture is bounded by two layers' attention, however many layers and batches there are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks/capture.py"
HEADS, TOKENS = 8, 1024
LAYER = HEADS * TOKENS**2 * 4 / 2**20  # MiB of float32


def _peak(way: str, layers: int) -> float:
    command = [sys.executable, str(BENCHMARK), "--way", way, "--batches=2", f"--tokens={TOKENS}"]
    command += [f"--layers={layers}", f"--heads={HEADS}"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(json.loads(printed.splitlines()[-1])["memory"])


@pytest.mark.slow
def test_capture_needs_at_most_two_layers_of_attention() -> None:
    forward, few, many = _peak("forward", 2), _peak("capture", 2), _peak("capture", 10)
    assert few - forward <= 2 * LAYER
    assert many - few <= LAYER  # the streams do not grow with depth
    assert _peak("output_attentions", 10) - forward > 8 * LAYER  # the measure can tell: this way does grow
