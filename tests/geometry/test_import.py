"""Importing the geometry costs next to nothing; what is heavy comes when it is used."""

from __future__ import annotations

import subprocess
import sys

import oattn_hub.geometry as geometry


def test_import_is_light() -> None:
    heavy = ("torch", "numba", "networkx", "matplotlib")
    code = f"import sys, oattn_hub.geometry; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_public_names_exist_and_are_sorted() -> None:
    assert list(geometry.__all__) == sorted(geometry.__all__)
    for name in geometry.__all__:
        assert getattr(geometry, name).__doc__, name


def test_measuring_heads_imports_no_statistics_library() -> None:
    """scipy.stats takes half a second of every cold start."""
    lines = [
        "import sys, numpy as np",
        "from oattn_hub.analysis.measure import join_batches, measure_batch",
        "from oattn_hub.geometry import Questionnaire",
        "from oattn_hub.records import Settings",
        "from oattn_hub.attention.store import HeadRecord",
        "settings = Settings('probs', 2, 6, 0, Questionnaire(n_iters=1).get_params())",
        "batches = [np.random.default_rng(seed).random((6, 6, 4)) for seed in range(2)]",
        "heads = [HeadRecord(0, 'layer', head) for head in range(4)]",
        "join_batches('all', heads, batches[0], [measure_batch(X, settings) for X in batches], settings)",
        "assert not {'scipy.stats', 'scipy.optimize', 'torch'} & set(sys.modules), sorted(sys.modules)",
    ]
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)
