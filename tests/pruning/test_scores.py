"""Scores on a model whose answer is known: some heads write nothing, so they must go first and cost nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import oattn_hub as oh
from oattn_hub.attention import CalibrationInputs, load_model
from oattn_hub.errors import InvalidInput
from oattn_hub.pruning import evaluate
from oattn_hub.pruning.outputs import displacements, removal_order, weighted_gram
from oattn_hub.pruning.scores import Subject, get_score, list_scores
from oattn_hub.pruning.sites import head_sites
from oattn_hub.pruning.tasks import find_task

DEAD = [(0, 1), (1, 3), (2, 0)]


@pytest.fixture
def half_dead(tiny_bert: Any) -> Any:
    """A BERT with three heads whose columns of the output projection are zero."""
    with torch.no_grad():
        for layer in tiny_bert.encoder.layer:  # a default initialisation leaves all heads nearly silent
            layer.attention.self.value.weight.mul_(10)
            layer.attention.output.dense.weight.mul_(10)
        for layer, head in DEAD:
            tiny_bert.encoder.layer[layer].attention.output.dense.weight[:, 8 * head : 8 * head + 8] = 0
    return tiny_bert


def batches(count: int, tokens: int = 12, seed: int = 0) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [{"input_ids": torch.randint(3, 60, (1, tokens), generator=generator)} for _ in range(count)]


def subject(model: Any, count: int = 3) -> Subject:
    loaded, inputs = load_model(model), CalibrationInputs(tuple(batches(count)), "drawn")
    return Subject(loaded, inputs, find_task(loaded, inputs))


@pytest.mark.parametrize("name", ["output", "displacement", "weight", "gradient", "ablation"])
def test_dead_heads_go_first(half_dead: Any, name: str) -> None:
    studied = subject(half_dead)
    values = get_score(name).measure(studied)
    assert values.shape == (12,)
    first = [studied.heads[index] for index in np.argsort(values, kind="stable")[:3]]
    assert sorted(first) == DEAD


def test_ablation_is_the_measured_divergence(half_dead: Any) -> None:
    studied = subject(half_dead)
    values = get_score("ablation").measure(studied)
    with torch.no_grad():
        plain = [half_dead(**batch)[0] for batch in studied.inputs]
    assert len(plain) == 3
    assert values[1] == pytest.approx(0, abs=1e-6)
    assert (np.delete(values, [1, 7, 8]) > 1e-6).all()


@pytest.mark.parametrize(
    "family", ["llama", "gpt2", "gpt_neox", "t5", "timm-vit", "timm-visformer", "torch-encoder", "xlnet"]
)
def test_scores_of_the_model_run_on_every_kind_of_layout(zoo: Any, family: str) -> None:
    model, inputs = zoo.BY_NAME[family].build()
    loaded = load_model(model)
    given = CalibrationInputs((inputs,), "one")
    studied = Subject(loaded, given, find_task(loaded, given))
    names = ["weight", "gradient", "ablation"]
    if all(site.output_module is not None for site in head_sites(model)):
        names += ["output", "displacement"]
    for name in names:
        values = get_score(name).measure(studied)
        assert values.shape == (len(studied.heads),)
        assert np.isfinite(values).all()
        assert len(np.unique(values)) > 1


def test_gradient_of_a_parameter_output_equals_that_of_a_gate() -> None:
    """W . dL/dW of a head's part is dL/dgate: the two routes agree on one model written both ways."""
    from torch import nn

    from oattn_hub.pruning.scores.model import _gradient

    torch.manual_seed(0)
    raw = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 48, batch_first=True), 1, enable_nested_tensor=False)
    loaded, inputs = load_model(raw.eval()), CalibrationInputs(({"src": torch.randn(1, 6, 32)},), "one")
    studied = Subject(loaded, inputs, find_task(loaded, inputs))
    found = _gradient(studied)
    loss = studied.task.losses(loaded, inputs[0], seed=0)
    weight = raw.layers[0].self_attn.out_proj.weight
    expected = np.zeros(4)
    for one in loss:
        (slope,) = torch.autograd.grad(one, weight, retain_graph=True)
        expected += (weight * slope).detach().reshape(32, 4, 8).sum((0, 2)).numpy() ** 2
    assert found == pytest.approx(np.sqrt(expected / len(loss)), rel=1e-4)


def test_displacements_add_up_to_the_output(half_dead: Any) -> None:
    """The heads' outputs of a layer sum to what its output projection gives, without its bias."""
    loaded = load_model(half_dead)
    batch = batches(1)[0]
    seen: dict[str, torch.Tensor] = {}
    dense = half_dead.encoder.layer[1].attention.output.dense
    handle = dense.register_forward_hook(lambda _, __, output: seen.update(out=output))
    with torch.no_grad():
        half_dead(**batch)
    handle.remove()
    _, fields = displacements(loaded, head_sites(half_dead), batch)[1]
    expected = (seen["out"] - dense.bias).detach()[0].double().numpy()
    total = fields.sum(axis=0)
    assert total / np.linalg.norm(total) == pytest.approx(expected / np.linalg.norm(expected), abs=1e-5)


def test_gram_is_that_of_the_fields_when_all_functions_weigh_one() -> None:
    """Two queries: the constant and one difference, both of support two, so the weights are one."""
    fields = np.random.default_rng(0).normal(size=(3, 2, 5))
    flat = fields.reshape(3, -1)
    assert weighted_gram(fields) == pytest.approx(flat @ flat.T / 2)


def test_cancelling_heads_go_together() -> None:
    gram = np.array([[1.0, 0.0, -0.9], [0.0, 0.8, 0.0], [-0.9, 0.0, 1.0]])
    assert removal_order(gram).tolist() == [1, 0, 2]
    assert removal_order(np.diag([3.0, 1.0, 2.0])).tolist() == [1, 2, 0]


def test_random_follows_its_seed(tiny_bert: Any) -> None:
    one, same, other = (Subject(**{**vars(subject(tiny_bert)), "seed": seed}) for seed in (0, 0, 1))
    draw = get_score("random").measure
    assert (draw(one) == draw(same)).all()
    assert (draw(one) != draw(other)).any()


def test_unknown_score() -> None:
    with pytest.raises(InvalidInput, match="choose from ablation"):
        get_score("magic")


def test_every_score_says_where_it_comes_from_and_what_it_costs() -> None:
    for name in list_scores():
        score = get_score(name)
        assert score.cost
        assert score.citation or name == "random"


def test_a_haar_score_without_a_report_says_so(tiny_bert: Any) -> None:
    with pytest.raises(InvalidInput, match="Analyse the model first"):
        get_score("haar").measure(subject(tiny_bert))


def test_evaluate_without_a_report_leaves_haar_out(half_dead: Any) -> None:
    section = evaluate(None, half_dead, ["output", "weight"], data=batches(9), fractions=(0.25, 0.5))
    assert [score.name for score in section.scores][-1] in ("random", "weight")
    assert section.cost_at("output", 0.25) == pytest.approx(0, abs=1e-6)
    assert section.score("random").auc > section.score("output").auc


def test_scores_join_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    from oattn_hub.errors import InvalidInput
    from oattn_hub.pruning.scores import Score, get_score, list_scores, register, registry, resolve_scores

    monkeypatch.setattr(registry, "_SCORES", dict(registry._SCORES))
    mine = Score("mine", "my own", "", "nothing", lambda subject: np.arange(len(subject.heads), dtype=float))
    register(mine)
    assert get_score("mine") is mine
    assert "mine" in list_scores()
    assert mine not in resolve_scores("all")  # by name only
    with pytest.raises(InvalidInput, match="already a score"):
        register(mine)


def test_scores_of_installed_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    from oattn_hub.pruning.scores import Score, list_scores, registry

    class Entry:
        value = "somewhere:SCORE"

        def __init__(self, found: object) -> None:
            self.found = found

        def load(self) -> object:
            if isinstance(self.found, Exception):
                raise self.found
            return self.found

    theirs = Score("theirs", "", "", "", lambda subject: np.zeros(len(subject.heads)))
    monkeypatch.setattr(registry, "_SCORES", dict(registry._SCORES))
    monkeypatch.setattr(registry, "entry_points", lambda group: [Entry(theirs), Entry(ImportError("broken"))])
    registry._load_installed.cache_clear()
    with pytest.warns(RuntimeWarning, match="broken"):
        assert "theirs" in list_scores()


def test_a_score_of_another_package_ranks_heads_once_that_is_installed(tmp_path: Path) -> None:
    """As pip leaves a package behind: a module, and beside it a dist-info that names the score."""
    (tmp_path / "their_package.py").write_text(
        "import numpy as np\n"
        "from oattn_hub.pruning.scores import Score\n"
        "LAST = Score('last-first', 'the last head first', '', 'nothing', lambda s: -np.arange(float(len(s.heads))))\n"
    )
    installed = tmp_path / "their_package-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("[oattn_hub.scores]\nlast-first = their_package:LAST\n")
    code = (
        "from types import SimpleNamespace; from oattn_hub.pruning.scores import get_score;"
        "print(get_score('last-first').measure(SimpleNamespace(heads=[(0, 0), (0, 1)])).argmin())"
    )
    places = os.pathsep.join([str(tmp_path), str(Path(oh.__file__).parents[1])])
    environment = {**os.environ, "PYTHONPATH": places}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == ("1", 0), done.stderr[-2000:]


def test_rules_of_peers(tiny_bert: Any) -> None:
    from oattn_hub.inputs import CalibrationInputs
    from oattn_hub.models.load import load_model
    from oattn_hub.pruning.scores import Subject, get_score
    from oattn_hub.pruning.tasks import EmbeddingTask

    generator = torch.Generator().manual_seed(0)
    drawn = tuple({"input_ids": torch.randint(3, 60, (1, 12), generator=generator)} for _ in range(2))
    subject = Subject(load_model(tiny_bert), CalibrationInputs(drawn, ""), EmbeddingTask())
    drop = get_score("layer-drop").measure(subject).reshape(3, 4)
    assert (drop > 0).all()
    assert (drop == drop[:, :1]).all()
    with torch.no_grad():
        tiny_bert.encoder.layer[1].attention.output.dense.weight.zero_()
        tiny_bert.encoder.layer[1].attention.output.dense.bias.zero_()
    assert get_score("layer-drop").measure(subject)[4:8] == pytest.approx(0, abs=1e-6)
    fisher = get_score("fisher-diagonal").measure(subject)
    assert (fisher[4:8] == 0).all()
    assert (fisher[:4] > 0).all()


def test_of_two_heads_that_attend_alike_the_less_salient_goes_first(tiny_bert: Any) -> None:
    with torch.no_grad():
        for layer in tiny_bert.encoder.layer:
            for part in ("query", "key"):
                getattr(layer.attention.self, part).weight.mul_(20)
        attention = tiny_bert.encoder.layer[1].attention
        for part in ("query", "key"):  # head 2 of layer 1 looks where head 0 looks
            weight = getattr(attention.self, part).weight
            weight[16:24] = weight[0:8]
        attention.output.dense.weight[:, 0:8] *= 0.01  # and head 0 says little
    place = get_score("complementary").measure(subject(tiny_bert))
    assert sorted(place.tolist()) == list(range(12))
    assert place[4] == 0
