"""The scripts of examples/paper run, on settings so small that only their working is shown."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
PAPER = ROOT / "examples" / "paper"

pytestmark = pytest.mark.slow


def run(script, *arguments, home, **variables):
    environment = {**os.environ, "OATTN_HOME": str(home), "OMP_NUM_THREADS": "1", **variables}
    command = [sys.executable, PAPER / script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def assert_experiment(out, sentence):
    results = (out / "results.md").read_text(encoding="utf-8")
    for part in ("Table 1", "Table 1 as the paper counts it", "Table 2", "Theorem 1", sentence):
        assert part in results
    for number in range(1, 7):
        assert (out / f"figure-{number}.png").stat().st_size > 1000


def test_vit_experiment(shared_data, tmp_path):
    run("vit_cifar10.py", "--data", shared_data, "--batches", 2, "--out", tmp_path / "out", home=tmp_path)
    assert_experiment(tmp_path / "out", "6 layers, 48 heads, attention 65 x 65, 2 batches")


def test_transformer_xl_experiment(wikitext_excerpt, tmp_path):
    out = tmp_path / "out"
    options = ["--data", wikitext_excerpt, "--batches", 2, "--tokens", 48, "--out", out]
    run("transfo_xl.py", *options, home=tmp_path)
    assert_experiment(out, "32 heads, attention 48 x 48, 2 batches")


def test_a_model_is_captured_once(monkeypatch, tmp_path):
    """Scores and probs come from one store: a forward pass of a large model is what takes long."""
    import oattn_hub as oh
    from oattn_hub.inputs import calibration_inputs

    monkeypatch.syspath_prepend(PAPER)
    import experiment

    loaded = oh.load_model(pretrained_without_classes(tmp_path / "in21k"))
    inputs, calls = calibration_inputs(loaded, None, batches=2), []
    loaded.model.register_forward_hook(lambda *_: calls.append(1))
    experiment.run(experiment.VIT, loaded, inputs, tmp_path / "out")
    assert len(calls) == 2
    assert_experiment(tmp_path / "out", "2 layers, 4 heads, attention 10 x 10, 2 batches")


def write_images(path, n):
    rng = np.random.default_rng(n)
    classes = np.array([f"class {label}" for label in range(10)])
    images = rng.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8)
    np.savez(path, images=images, labels=rng.integers(0, 10, n, dtype=np.uint8), classes=classes)


def test_training_the_vit_goes_on_where_it_stopped(tmp_path):
    write_images(tmp_path / "cifar10-train.npz", 700)  # 500 of them are kept back
    write_images(tmp_path / "cifar10-test.npz", 20)
    epochs = []
    for minutes in (0.0001, 0.05):
        run("train_vit.py", "--data", tmp_path, "--out", tmp_path, "--minutes", minutes, home=tmp_path)
        epochs.append(json.loads((tmp_path / "training.json").read_text())["epochs"])
    log = run("train_vit.py", "--data", tmp_path, "--out", tmp_path, "--minutes", 0.05, home=tmp_path)
    assert epochs[0] == 1
    assert epochs[1] > 1
    assert "epoch" not in log.splitlines()[0].split("{")[0]  # the budget is used: nothing is trained again


def test_training_transformer_xl_lowers_the_perplexity(wikitext_excerpt, tmp_path):
    size = ["--layers", 2, "--heads", 2, "--width", 32, "--inner", 32, "--words", 500, "--cutoffs", 200]
    pace = ["--context", 32, "--memory", 16, "--batch", 4, "--learning-rate", 5e-3, "--minutes", 0.08]
    text = ["--train", wikitext_excerpt, "--test", wikitext_excerpt, "--test-words", 1000]
    run("train_transfo_xl.py", *text, "--out", tmp_path, *size, *pace, home=tmp_path)
    result = json.loads((tmp_path / "training.json").read_text())
    assert result["test_perplexity"] < 0.7 * result["untrained_perplexity"]
    assert json.loads((tmp_path / "config.json").read_text())["mem_len"] == 0


# A stand-in for the package datasets: rows as the Hub serves them, so that no test fetches half a gigabyte.
_DATASETS = """
import numpy as np
from PIL import Image

class Rows(list):
    pass

def load_dataset(name, config, split):
    if name == "uoft-cs/cifar10":
        rng = np.random.default_rng(len(split))
        images = rng.integers(0, 256, (12, 32, 32, 3), dtype=np.uint8)
        rows = Rows({"img": Image.fromarray(image), "label": place % 10} for place, image in enumerate(images))
        names = type("Label", (), {"names": [f"class {place}" for place in range(10)]})
        rows.features = {"label": names}
        return rows
    assert (name, config) == ("Salesforce/wikitext", "wikitext-103-v1")
    return [{"text": line} for line in open(TEXT, encoding="utf-8")] + [{"text": ""}]
"""


def pretrained_without_classes(folder):
    """A tiny stand-in for google/vit-base-patch16-224-in21k: a body, no classes, larger images than CIFAR-10's."""
    import torch
    from transformers import ViTConfig, ViTImageProcessor, ViTModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    ViTModel(ViTConfig(image_size=48, patch_size=16, **sizes)).save_pretrained(folder)
    ViTImageProcessor(size={"height": 48, "width": 48}).save_pretrained(folder)
    return folder


def test_the_paper_s_vit_in_one_command(tmp_path):
    (tmp_path / "datasets.py").write_text(_DATASETS)
    model, out = pretrained_without_classes(tmp_path / "in21k"), tmp_path / "out"
    options = ["vit", "--out", out, "--batches", 7, "--model", model, "--batch", 4]
    run("reproduce.py", *options, home=tmp_path, PYTHONPATH=f"{ROOT}{os.pathsep}{tmp_path}")
    assert_experiment(out, "2 layers, 4 heads, attention 10 x 10, 7 batches")
    trained = json.loads((out / "model" / "training.json").read_text())
    assert trained["steps"] == 3  # one epoch of 12 images
    assert trained["learning_rate"] == 3e-5
    assert json.loads((out / "model" / "config.json").read_text())["id2label"]["3"] == "class 3"
    log = run("reproduce.py", *options, home=tmp_path, PYTHONPATH=str(ROOT))
    assert "step" not in log  # all is there: nothing is fetched or trained


def test_the_paper_s_transformer_xl_in_one_command(wikitext_excerpt, tmp_path):
    (tmp_path / "datasets.py").write_text(f"TEXT = {str(wikitext_excerpt)!r}\n{_DATASETS}")
    size = ["--layers", 2, "--heads", 2, "--width", 16, "--inner", 16, "--cutoffs", 200]
    pace = ["--context", 32, "--memory", 16, "--batch", 4, "--minutes", 0.01, "--test-words", 200]
    options = ["txl", "--out", tmp_path / "out", "--batches", 7, "--tokens", 24, *size, *pace]
    run("reproduce.py", *options, home=tmp_path, PYTHONPATH=f"{ROOT}{os.pathsep}{tmp_path}")
    assert_experiment(tmp_path / "out", "2 layers, 4 heads, attention 24 x 24, 7 batches")
    config = json.loads((tmp_path / "out" / "model" / "config.json").read_text())
    assert config["div_val"] == 1  # as the published recipe of this size
    lines = (tmp_path / "out" / "data" / "train.txt").read_text(encoding="utf-8")
    assert lines == wikitext_excerpt.read_text(encoding="utf-8") + "\n"
