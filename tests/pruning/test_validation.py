"""A report put to the test: known answers for each of the three checks, and the verb from end to end."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import oattn_hub as oh
from oattn_hub.analysis.validity import domain_agreement, regularity
from oattn_hub.cli import main
from oattn_hub.errors import FormatError, InvalidInput
from oattn_hub.progress import silent
from oattn_hub.pruning import masked, validate
from oattn_hub.pruning.tasks import DIVERGENCE_KL, Metric
from oattn_hub.pruning.validation import _as_before, _trial
from oattn_hub.records import Settings
from oattn_hub.report import Report
from oattn_hub.report.validation import OWN, ValidationSection

FEW: dict[str, Any] = {"batches": 4, "remove": [1, 3], "draws": 6, "inputs": 6}


def batches(count: int, seed: int, tokens: int = 16) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [{"input_ids": torch.randint(3, 60, (1, tokens), generator=generator)} for _ in range(count)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A causal model of 2 layers x 4 heads, saved."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 60, "n_positions": 32}
    made = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=1, eos_token_id=2)).eval()
    with torch.no_grad():  # attention that matters and differs from head to head
        for block in made.transformer.h:
            block.attn.c_attn.weight.mul_(8)
            block.attn.c_proj.weight.mul_(8)
    folder = tmp_path_factory.mktemp("gpt2")
    made.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def report(model: Path) -> Report:
    return oh.analyze(model, data=batches(5, seed=1), batches=5)


@pytest.fixture(scope="module")
def validated(report: Report) -> Report:
    return report.validate(domains=[batches(18, seed=2), batches(18, seed=3)], **FEW)


def _section(report: Report) -> ValidationSection:
    assert report.validation is not None
    return report.validation


def test_every_check_is_made_for_every_domain(report: Report, validated: Report) -> None:
    section = _section(validated)
    assert [domain.name for domain in section.domains] == [OWN, "domain 1", "domain 2"]
    assert [domain.n_inputs for domain in section.domains] == [5, 4, 4]
    assert {(pair.first, pair.second) for pair in section.between} == {
        (OWN, "domain 1"), (OWN, "domain 2"), ("domain 1", "domain 2")
    }  # fmt: skip
    assert {(trial.count, trial.metric) for trial in section.removals} == {
        (count, metric) for count in (1, 3) for metric in ("divergence", "loss")
    }
    lowest = np.argsort(report.group().ranking.ranks)
    keys = report.group().head_keys()
    assert section.removals[0].heads == (keys[lowest[0]],)
    assert section.n_inputs == 6
    assert len(section.regularity[0].exponents) == 8
    assert report.validation is None, "a report is frozen: the result is in a new one"


def test_heads_are_ranked_again_as_the_report_ranked_them(model: Path) -> None:
    analyzer = oh.Analyzer("scores", questionnaire={"n_iters": 1}, landmarks=3)
    report = analyzer.run(model, data=batches(4, seed=1), batches=4)
    assert _as_before(report, 0, None, None, silent).settings(4, report.settings.tokens) == report.settings


def test_heads_are_ranked_again_on_the_gpu_of_the_model(
    model: Path, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oattn_hub.pruning.validation.cuda_of", lambda _: "cpu")  # as if the model were on a GPU
    monkeypatch.delattr("oattn_hub.geometry.kernels.add_overlaps")  # what compares slices without a device
    assert validate(report, domains=[batches(18, seed=2)], **FEW).within


def test_costs_are_those_of_the_masked_model(model: Path, report: Report) -> None:
    """The divergence of the lowest head, computed here by hand on the same inputs."""
    data = batches(18, seed=2)
    section = validate(report, domains=[data], **FEW)
    trial = next(t for t in section.removals if t.metric == "divergence" and t.count == 1)
    loaded = oh.load_model(model).model
    held_out = data[6:12]
    found = []
    for batch in held_out:
        with torch.no_grad():
            before = loaded(**batch).logits.log_softmax(-1)
            with masked(loaded, trial.heads):
                after = loaded(**batch).logits.log_softmax(-1)
        found.append(float((before.exp() * (before - after)).sum(-1).mean()))
    assert trial.cost == pytest.approx(np.mean(found), rel=1e-4)
    assert trial.cost_low <= trial.cost <= trial.cost_high
    assert trial.difference == pytest.approx(trial.cost - np.mean(trial.random), rel=1e-6)


def test_the_section_survives_a_file_and_a_damaged_one_is_refused(validated: Report, tmp_path: Path) -> None:
    section = _section(validated)
    assert ValidationSection.from_json(json.loads(json.dumps(section.to_json()))) == section
    validated.save(tmp_path)
    assert Report.load(tmp_path).validation == section
    wrong = section.to_json()
    wrong["between"][0]["coverage"] = "most"
    with pytest.raises(FormatError, match="coverage"):
        ValidationSection.from_json(wrong)


def test_page_card_and_figures_say_it(validated: Report, tmp_path: Path) -> None:
    from oattn_hub.hub.card import report_readme

    section = _section(validated)
    page = validated.write_page(tmp_path / "page.html").read_text(encoding="utf-8")
    figures = validated.save_figures(tmp_path)
    card = report_readme(validated, figures)
    sentence = next(finding for finding in section.findings if "of lowest entropy it gets" in finding)
    assert sentence in page
    assert sentence in card
    assert "random draws that cost less" in page
    assert {"validation-regularity.png", "validation-removal.png"} <= {path.name for path in figures}
    assert "figures/validation-removal.png" in card


def test_the_same_seed_gives_the_same_section(report: Report) -> None:
    data = [batches(18, seed=2)]
    assert validate(report, domains=data, **FEW) == validate(report, domains=data, **FEW)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"domains": "a.txt"}, "list"),
        ({"domains": []}, "list"),
        ({"batches": 3}, "batches is 3"),
        ({"draws": 4}, "draws is 4"),
        ({"inputs": 1}, "inputs is 1"),
        ({"remove": []}, "remove is"),
        ({"remove": [0]}, "remove is"),
        ({"remove": [8]}, "from 1 to 7"),
    ],
)
def test_what_is_no_check_is_refused(report: Report, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        validate(report, **{**FEW, **options})


def test_a_domain_named_twice_is_refused(report: Report) -> None:
    with pytest.raises(InvalidInput, match="same data"):
        validate(report, domains=[batches(18, seed=2), batches(18, seed=2)], **FEW)


# ---------------------------------------------------------------- known answers


def test_agreement_of_domains_that_are_alike_and_of_one_that_is_not() -> None:
    rng = np.random.default_rng(0)
    means = np.arange(1.0, 41.0)
    alike = {name: means + 0.1 * rng.standard_normal((12, 40)) for name in ("a", "b")}
    within, between = domain_agreement("g", {**alike, "c": means[::-1] + 0.1 * rng.standard_normal((12, 40))}, 0.1, 0)
    by_pair = {(pair.first, pair.second): pair for pair in between}
    assert [one.domain for one in within] == ["a", "b", "c"]
    assert within[0].spearman == pytest.approx(1, abs=0.01)
    assert by_pair["a", "b"].jaccard == 1
    assert by_pair["a", "b"].expected == pytest.approx(0.85, abs=0.01)  # two means of 12 inputs each
    assert not by_pair["a", "b"].domain_matters
    assert by_pair["a", "c"].jaccard == 0
    assert by_pair["a", "c"].spearman == pytest.approx(-1, abs=0.01)
    assert by_pair["a", "c"].coverage < 0.1
    assert by_pair["a", "c"].domain_matters


def test_expected_coverage_is_what_equal_domains_show() -> None:
    """6 inputs against 20 of the same kind, 400 heads: the share that is held is the share that is expected."""
    rng = np.random.default_rng(0)
    means = 1 + np.arange(400.0)
    draw = {"few": means + rng.standard_normal((6, 400)), "many": means + rng.standard_normal((20, 400))}
    _, [pair] = domain_agreement("g", draw, 0.1, 0)
    assert pair.coverage == pytest.approx(pair.expected, abs=0.06)
    assert pair.coverage_back == pytest.approx(pair.expected_back, abs=0.1)
    assert pair.expected_back < pair.expected < 0.95


def test_smooth_heads_of_low_entropy_are_called_regular() -> None:
    """Half of the heads are smooth over the positions and small, half are noise: the first must come out regular."""
    from oattn_hub.analysis.measure import measure_batch

    rng = np.random.default_rng(0)
    x = np.linspace(0, 1, 32)
    smooth = [0.5 + 0.2 * np.sin(2 * x[:, None] + shift) * x for shift in rng.random(8)]
    rough = [rng.random((32, 32)) for _ in range(8)]
    X = np.stack([*smooth, *rough], axis=2)
    settings = Settings("probs", 1, 32, 0, {"n_iters": 2, **_questionnaire()})
    measured = measure_batch(X, settings)
    found = regularity("g", [(0, head) for head in range(16)], [X], [measured], 0.5)
    assert found.n_lowest == 8
    assert set(np.argsort(found.entropies)[:8].tolist()) == set(range(8))
    assert found.verdict == "more"
    assert found.spearman is not None
    assert found.spearman < 0


def _questionnaire() -> dict[str, Any]:
    from oattn_hub.geometry import Questionnaire

    return {name: value for name, value in Questionnaire().get_params().items() if name != "n_iters"}


@pytest.mark.parametrize(("shift", "verdict"), [(-1.0, "less"), (1.0, "more"), (0.0, "undecided")])
def test_a_trial_says_what_the_numbers_say(shift: float, verdict: str) -> None:
    rng = np.random.default_rng(0)
    random = [2 + 0.1 * rng.standard_normal(16) for _ in range(20)]
    lowest = 2 + shift + 0.1 * rng.standard_normal(16)
    trial = _trial("g", [(0, 0)], DIVERGENCE_KL, np.zeros(16), [lowest, *random], 0)
    assert trial.verdict == verdict
    assert trial.cheaper_draws == {"less": 0, "more": 20}.get(verdict, trial.cheaper_draws)
    accuracy = Metric("accuracy", "accuracy", higher_is_better=True)
    mirrored = _trial("g", [(0, 0)], accuracy, np.zeros(16), [-lowest, *(-one for one in random)], 0)
    assert mirrored.difference == pytest.approx(trial.difference)


def test_paired_intervals_hold_what_they_say() -> None:
    """The lowest heads cost as much as random ones: the interval must miss zero in about 5 % of 200 trials."""
    rng = np.random.default_rng(0)
    missed = 0
    for number in range(200):
        hard = rng.random(24)  # some inputs cost more than others, whatever is removed
        sets = 1 + 0.3 * rng.standard_normal(21)
        after = [size * hard + 0.05 * rng.standard_normal(24) for size in sets]
        middle = hard + 0.05 * rng.standard_normal(24)  # neither better nor worse than the sets that are drawn
        trial = _trial("g", [(0, 0)], DIVERGENCE_KL, np.zeros(24), [middle, *after[1:]], number)
        missed += trial.verdict != "undecided"
    assert missed <= 20


# ---------------------------------------------------------------- the verb


def test_oattn_validate_joins_report_and_page(
    model: Path,
    save_word_tokenizer: Callable[[Path], int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """From a saved report of a text model, on two files."""
    monkeypatch.setenv("OATTN_HOME", str(tmp_path / "home"))
    folder = Path(shutil.copytree(model, tmp_path / "model"))
    save_word_tokenizer(folder)
    rng = np.random.default_rng(0)
    words = ["the", "and", "of", "to", "a", "in", "I", "you", "my", "that", "is", "not", "with", "his", "it"]
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(" ".join(rng.choice(words, 2000)), encoding="utf-8")
    files, run = [str(tmp_path / name) for name in ("a.txt", "b.txt")], str(tmp_path / "run")
    assert main(["analyze", str(folder), "--data", files[0], "--batches", "4", "--tokens", "16", "--out", run]) == 0
    capsys.readouterr()
    options = ["--batches", "4", "--remove", "1-2", "--draws", "5", "--inputs", "4"]
    assert main(["validate", run, "--domains", ",".join(files), *options]) == 0
    assert "drawn at random" in capsys.readouterr().out
    section = _section(Report.load(run))
    assert [domain.name for domain in section.domains] == [OWN, "a.txt", "b.txt"]
    assert [trial.count for trial in section.removals] == [1, 2, 1, 2]
    bundled = _section(Report.load(run).validate(**{**FEW, "remove": [1], "inputs": 2}))
    assert [domain.name for domain in bundled.domains] == [OWN, "the bundled data"]
    assert section.findings[0] in (tmp_path / "run/report.html").read_text(encoding="utf-8")


def test_inputs_of_the_same_data_are_no_other_domain(validated: Report) -> None:
    """A report on the bundled data, validated on the bundled data: 'the domain hardly matters'."""
    section = _section(validated)
    assert not any("the same data" in finding for finding in section.findings)
    own, other, third = section.domains
    bundled = "{} synthetic images (coloured gratings and discs, seed 0): no photographs were given"
    alike = (replace(own, data=bundled.format(6)), replace(other, data=bundled.format(20)), third)
    told = [finding for finding in replace(section, domains=alike).findings if "the same data" in finding]
    assert len(told) == 1
    assert told[0].startswith("Between the report's own data and domain 1")
    assert "hardly matters" not in told[0]
    twice = (own, replace(other, fingerprint=own.fingerprint), third)
    assert any("the same data" in finding for finding in replace(section, domains=twice).findings)


def test_one_domain_is_called_little(validated: Report) -> None:
    section = _section(validated)
    assert not any("say more than one" in finding for finding in section.findings)
    fewer = replace(section, domains=section.domains[:2])
    assert any("say more than one" in finding for finding in fewer.findings)
