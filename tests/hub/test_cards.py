"""Cards: every value filled, every figure there, front matter that the client itself accepts."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from huggingface_hub import ModelCard

from oattn_hub.cards import render
from oattn_hub.errors import FormatError, InvalidInput
from oattn_hub.files import read_json, write_json, write_sealed
from oattn_hub.hub import card_of, load_report, push_report, write_card
from oattn_hub.hub.card import hub_id, report_readme
from oattn_hub.hub.checkpoint_card import _head_map
from oattn_hub.hub.push import write_checkpoint_card
from oattn_hub.local_hub import LocalHub
from oattn_hub.pruning import PruningPlan
from oattn_hub.pruning.costs import PruningResult, saving_rows
from oattn_hub.pruning.words import weights_words
from oattn_hub.report.evaluation import Curve, EvaluationSection, MetricInfo, ScoreResult

if TYPE_CHECKING:
    from oattn_hub.report import Report


@pytest.fixture(scope="module")
def report(tiny_report: Report) -> Report:
    """As if the model came from the Hub."""
    known = {"id": "someone/tiny-bert", "source": "someone/tiny-bert", "revision": "a" * 40, "license": "mit"}
    return replace(tiny_report, model=replace(tiny_report.model, **known))


@pytest.fixture(scope="module")
def folder(report: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(push_report(report, "me/heads", dry_run=tmp_path_factory.mktemp("card") / "dry").folder or "")


def test_a_dry_run_writes_the_exact_folder(folder: Path, report: Report) -> None:
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert {"README.md", "report.json", "report.safetensors", "report.html", "figures/heads.png"} <= names
    with pytest.raises(InvalidInput, match="not empty"):
        push_report(report, "me/heads", dry_run=folder)


def test_every_figure_of_the_card_is_there_and_every_value_filled(folder: Path) -> None:
    text = (folder / "README.md").read_text()
    figures = re.findall(r"!\[([^\]]+)\]\(([^)]+)\)", text)
    assert len(figures) >= 4
    for caption, path in figures:
        assert caption
        assert not path.startswith(("/", "http"))
        assert (folder / path).read_bytes().startswith(b"\x89PNG")
    for hole in ("More Information Needed", "None", "{{", "}}", "TODO", "nan", "Undefined"):
        assert hole not in text, hole


def test_a_published_report_does_not_name_the_folders_of_this_disk(tiny_report: Report, tmp_path: Path) -> None:
    model, data = tmp_path / "my secret models" / "tiny", tmp_path / "notes.txt"
    model.mkdir(parents=True)
    local = replace(
        tiny_report,
        model=replace(
            tiny_report.model, source=str(model), options={"cache_dir": str(tmp_path), "gguf_file": "a.gguf"}
        ),
        provenance=replace(
            tiny_report.provenance,
            command=f"oattn analyze '{model}' --data dataset:{data}?split=test --seed 3",
            data=f"dataset:{data}?split=test (9 rows), seed 3",
        ),
    )
    folder = Path(push_report(local, "me/heads", dry_run=tmp_path / "dry").folder or "")
    for file in (path for path in folder.rglob("*") if path.is_file()):
        assert str(tmp_path).encode() not in file.read_bytes(), file.name
    published = load_report(folder)
    assert published.provenance.command == "oattn analyze tiny --data 'dataset:notes.txt?split=test' --seed 3"
    assert published.provenance.data == "dataset:notes.txt?split=test (9 rows), seed 3"
    assert (published.model.source, published.model.options["gguf_file"]) == (None, "a.gguf")


def test_the_front_matter_is_what_the_hub_expects(folder: Path, plain_hub: LocalHub, monkeypatch: Any) -> None:
    from huggingface_hub import constants

    card = ModelCard.load(folder / "README.md")
    assert card.data.library_name == "oattn_hub"
    assert (card.data.base_model, card.data.license) == ("someone/tiny-bert", "mit")
    assert {"oattn_hub", "attention-head-report"} <= set(card.data.tags)
    assert card.data.to_dict()["oattn_hub"]["kind"] == "report"
    monkeypatch.setattr(constants, "ENDPOINT", plain_hub.url)
    card.validate()


def test_the_card_says_what_the_report_says(folder: Path, report: Report) -> None:
    text = (folder / "README.md").read_text()
    lowest = min(report.heads, key=lambda head: head.rank)
    assert f"| {lowest.layer}.{lowest.head} | {lowest.entropy:.4g} (" in text
    for finding in report.findings():
        assert finding in text
    assert f"revision | {'a' * 40}" in text
    assert report.provenance.data_fingerprint in text


def test_a_folder_on_a_disk_is_no_base_model(tmp_path: Path, tiny_report: Report) -> None:
    assert hub_id("a/b", "a/b") == "a/b"
    assert hub_id("a/b", str(tmp_path)) is None
    assert hub_id("a/b", None) is None
    assert hub_id("../x", "../x") is None
    readme = report_readme(tiny_report, [Path("figures/heads.png")])
    assert "base_model" not in readme
    assert 'load_report(".")' in readme


def test_a_local_model_can_be_named_as_the_hub_knows_it(tiny_report: Report, tmp_path: Path) -> None:
    named = ModelCard(report_readme(tiny_report, [Path("heads.png")], base_model="someone/known"))
    assert named.data.base_model == "someone/known"
    assert "does someone/known need?" in named.text
    with pytest.raises(InvalidInput, match="base_model is 'no id'"):
        report_readme(tiny_report, [Path("heads.png")], base_model="no id")
    local = {"id": "base", "source": str(tmp_path), "revision": None}
    plan = {"model": local, "score": "haar", "chosen_by": {"fraction": 0.25}, "evaluations": 0, "cost": None}
    assert checkpoint_card(tmp_path, **plan).data.base_model is None
    card = checkpoint_card(tmp_path, base_model="someone/known", **plan)
    assert card.data.base_model == "someone/known"
    assert "This is **someone/known** with 1 of its 4 attention heads removed" in card.text


def test_a_checkpoint_with_all_its_heads_is_called_a_copy(tmp_path: Path) -> None:
    cost = {"metric": "loss", "title": "loss", "before": 4.0, "after": 4.0, "inputs": "b" * 64, "verified_on": "text"}
    cost |= {"increase": 0.0, "low": 0.0, "high": 0.0}
    how = {
        "score": "search",
        "chosen_by": {"max_loss_increase": 0.01, "metric": "loss"},
        "evaluations": 7,
        "cost": cost,
    }
    card = checkpoint_card(tmp_path, heads=[], **how)
    assert card.data.to_dict()["oattn_hub"]["summary"] == "no head removed"
    text = card.text
    assert "**No head was removed**" in text
    for never in (
        "0 of its 4",
        "without 0",
        "What was removed",
        "Nothing was retrained",
        "| layer |",
        "What was saved",
    ):
        assert never not in text


def test_a_missing_value_fails_the_card() -> None:
    with pytest.raises(InvalidInput, match=r"checkpoint.md.j2 cannot be written.*undefined"):
        render("checkpoint.md.j2", {"title": "x"})


def test_values_cannot_break_the_table() -> None:
    rendered = render("provenance.md.j2", {"provenance": [("data", "a|b\n<script>")]})
    assert "| data | a\\|b &lt;script> |" in rendered


def test_the_datasets_of_the_hub_are_named(report: Report) -> None:
    def datasets(data: str) -> Any:
        read = replace(report, provenance=replace(report.provenance, data=data))
        return ModelCard(report_readme(read, [Path("heads.png")])).data.datasets

    assert datasets("dataset:owner/name.v2?split=test (30 rows), 2 contexts of 9 tokens, seed 0") == ["owner/name.v2"]
    assert datasets("dataset:squad (30 rows), 2 contexts of 9 tokens, seed 0") == ["squad"]
    assert datasets("dataset:/home/me/notes (30 rows)") is None
    assert datasets("valid.txt, 2 contexts of 9 tokens, seed 0") is None


def test_a_card_without_a_network(folder: Path, report: Report, tmp_path: Path) -> None:
    report.save(tmp_path / "report")
    text = card_of(tmp_path / "report", "me/heads")
    assert text == (folder / "README.md").read_text()
    path = write_card(tmp_path / "report", tmp_path / "card", "me/heads")
    assert path.read_text() == text
    assert (path.parent / "figures/heads.png").exists()
    with pytest.raises(FormatError, match="neither a report"):
        card_of(tmp_path)


@pytest.fixture
def evaluation() -> EvaluationSection:
    """A measured section with two scores, as ``oattn evaluate`` makes it."""
    curve = Curve((0.0, 0.02, 0.1), (0.0, 0.01, 0.08), (0.0, 0.03, 0.12))
    worse = Curve((0.0, 0.05, 0.2), (0.0, 0.04, 0.15), (0.0, 0.06, 0.25))
    scores = tuple(
        ScoreResult(name, name.capitalize(), "", "free", 1.0, (0.1, 0.2), {"divergence": c}, 0.04, 0.03, 0.05)
        for name, c in (("haar", curve), ("random", worse))
    )
    metric = MetricInfo("divergence", "divergence | from the whole model", False, False, 0.0)
    return EvaluationSection(
        (metric,), (0.0, 0.25, 0.5), ((0, 0), (0, 1)), scores, 5, 20, "w", "text A", "text B", "a" * 64, "b" * 64
    )


def checkpoint_card(
    folder: Path, evaluation: EvaluationSection | None = None, base_model: str | None = None, **plan: Any
) -> ModelCard:
    """The card of a checkpoint without its weights: only what the plan and the measurements say."""
    base = {
        "schema": 2, "heads": [[0, 1]], "n_heads": 4, "structure": "s",
        "model": {"id": "someone/base", "source": "someone/base", "revision": "c" * 40},
    }  # fmt: skip
    result = {"heads_before": 4, "heads_after": 3, "parameters_before": 100, "parameters_after": 90}
    manifest = {"variant": "cut", "library": "transformers", "class": "BertForMaskedLM", "oattn_hub": "1"}
    made = {"schema": 1, "sha256": {}, **manifest, "plan": {**base, **plan}, "result": result}
    write_sealed(folder / "oattn_pruned.json", made)
    write_json(folder / "config.json", {"auto_map": {"AutoModelForMaskedLM": "m.P"}})
    write_checkpoint_card(folder, "me/small", "mit", evaluation, base_model)
    return ModelCard.load(folder / "README.md")


def test_the_card_of_a_searched_checkpoint_says_what_was_verified(tmp_path: Path) -> None:
    interval = {"increase": 0.0084, "low": -0.01, "high": 0.027, "verified_on": "other text"}
    cost = {"metric": "loss", "title": "loss per token", "before": 4.0, "after": 4.03, "inputs": "b" * 64, **interval}
    how = {"max_loss_increase": 0.01, "metric": "loss"}
    card = checkpoint_card(tmp_path, score="search", chosen_by=how, evaluations=7, cost=cost)
    assert card.data.eval_results[0].dataset_name == "other text"
    assert "as many as keep the loss per token at most 1 % worse. 7 masked models were evaluated" in card.text
    assert "| loss per token | before | after | worse by (95 %) |" in card.text
    assert "| all inputs | 4 | 4.03 | 0.84 % (-1.00 to 2.70 %) |" in card.text
    assert "- Measured on inputs that chose nothing: other text." in card.text
    assert "`oattn prune REPORT --budget 0.01 --metric loss`" in card.text


def test_a_card_says_what_was_asked_for(tmp_path: Path) -> None:
    """Its command left out unit, shape, floor, heads to keep and lengths, and every ranking was called slopes."""
    look = {"metric": "loss", "title": "loss", "before": 4.0, "after": 4.03, "inputs": "b" * 64, "increase": 0.0084,
            "low": -0.01, "high": 0.027, "upper": 0.01, "verified_on": "text", "n_inputs": 9}  # fmt: skip
    cost = {**look, "tokens": 64, "lengths": [{**look, "tokens": 64}, {**look, "tokens": 256}]}
    form = {"unit": "groups", "shape": "uniform", "min_heads_per_layer": 1, "keep": [[0, 0], [3, 1]]}
    how = {"max_loss_increase": 0.01, "metric": "loss", "ranking": "obs", "unit_of_budget": "1 %", "verifications": 2}
    fit = {"kind": "bias", "layers": 2, "fitted_on": "text"}
    named = {"alignment_heads": [[3, 1]]}
    chosen = {"chosen_by": {**how, **form, **named}, "cost": cost, "compensation": fit}
    text = checkpoint_card(tmp_path, score="search", evaluations=7, **chosen).text
    options = "--unit groups --shape uniform --min-heads-per-layer 1 --keep 0.0,3.1 --compensate bias --lengths 64,256"
    assert f"`oattn prune REPORT --budget 0.01 --metric loss {options}`" in text
    assert "The key/value groups, equally many in every layer, were searched for in rounds." in text
    assert "move the output of their layer least" in text
    assert "gradients" not in text
    assert "Heads that times of words are read off stay: 3.1." in text
    share = {"fraction": 0.25, "score_by": "measured"}
    text = checkpoint_card(tmp_path, score="obs", evaluations=7, chosen_by=share, cost=cost).text
    assert "once the layer is refitted: 25 % of all heads, the score that was measured to cost least" in text


def test_the_first_sentence_of_a_checkpoint_says_the_cost_and_the_lengths_it_holds_for(tmp_path: Path) -> None:
    common = {"metric": "loss", "title": "loss a token", "before": 4.0, "inputs": "b" * 64, "verified_on": "text"}
    looks = [
        {**common, "after": 4.01, "increase": 0.0025, "low": 0.0, "high": 0.006, "upper": 0.005, "n_inputs": 9,
         "tokens": 128},
        {**common, "after": 4.02, "increase": 0.005, "low": 0.0, "high": 0.011, "upper": 0.009, "n_inputs": 9,
         "tokens": 512},
    ]  # fmt: skip
    how = {"max_loss_increase": 0.01, "metric": "loss", "unit_of_budget": "1 %", "verifications": 2}
    cost = {**looks[0], "lengths": looks}
    text = checkpoint_card(tmp_path, score="search", chosen_by=how, evaluations=7, cost=cost).text
    first = text[: text.index("## Load it")]
    assert "at a cost of at most 0.9 % (measured, 95 %; loss a token, at 128 and 512 tokens)." in first
    assert "| loss a token | before | after | worse by (95 %) | at most | inputs |" in text
    assert "| 128 tokens | 4 | 4.01 | 0.25 % (0.00 to 0.60 %) | 0.50 % | 9 |" in text
    assert "| 512 tokens | 4 | 4.02 | 0.50 % (0.00 to 1.10 %) | 0.90 % | 9 |" in text
    assert text.count("0.00 to 0.60 %") == 1  # the same cost was shown twice
    unmeasured = checkpoint_card(tmp_path, score="haar", chosen_by={"fraction": 0.25}, evaluations=0, cost=None).text
    assert "(25.0 %), by a plan whose cost was not measured." in unmeasured


def test_a_healed_checkpoint_keeps_its_budget_only_where_it_was_measured_to(tmp_path: Path) -> None:
    """ "The budget of 0.01 holds with 95 % confidence: at most 0.0124" was said, of other weights than were tested."""
    look = {"metric": "divergence", "title": "KL", "before": 0.0, "after": 0.009, "inputs": "b" * 64, "n_inputs": 9,
            "verified_on": "text", "increase": 0.009, "low": 0.008, "high": 0.01, "tokens": 128}  # fmt: skip
    how = {"max_loss_increase": 0.01, "metric": "divergence", "unit_of_budget": "0.01 of KL", "verifications": 5}
    healing = {"parameters": 10, "trained": "projections", "trained_on": "text", "steps": 12, "seconds": 30.0,
               "before": 0.0072, "after": 0.005}  # fmt: skip

    def card(upper: float) -> str:
        cost = {**look, "upper": upper, "lengths": [{**look, "upper": upper}]}
        kept = {"chosen_by": how, "evaluations": 7, "cost": cost, "healing": healing}
        return checkpoint_card(tmp_path, score="search", **kept).text

    over, within = card(0.0124), card(0.0095)
    assert "budget of 0.01 of KL was NOT shown to hold on inputs like these with 95 % confidence: the cost is" in over
    assert "budget of 0.01 of KL holds on inputs like these with 95 % confidence: the cost is at most 0.0095" in within
    assert "plans tested" not in over + within  # the tests were of the weights before the training


def test_a_latency_within_the_noise_of_the_machine_is_no_saving() -> None:
    """2 of 72 heads were said to be 20 % of the time, on a machine that other people used."""
    sizes = PruningResult(72, 70, 100, 99, seconds_before=0.12, seconds_after=0.096)
    noisy = replace(sizes, seconds_change_low=-0.4, seconds_change_high=0.1)
    clear = replace(sizes, seconds_change_low=-0.3, seconds_change_high=-0.1)
    assert [saving_rows(result)[-1].change for result in (sizes, noisy, clear)] == [
        "-20.0 %", "-20.0 %, within its noise", "-20.0 %, single turns -30 to -10 %",
    ]  # fmt: skip


def test_a_checkpoint_that_was_not_loaded_again_makes_no_promise(tmp_path: Path) -> None:
    """ "Not verified" was followed by "The weights come back bit for bit"."""
    text = checkpoint_card(tmp_path, score="haar", chosen_by={"fraction": 0.25}, evaluations=0, cost=None).text
    assert "**Not verified**" in text
    assert "bit for bit" not in text


def test_training_that_did_not_help_is_not_called_a_change() -> None:
    """A loss of 0.007207 -> 0.007207 was shown; the weights before it had been kept."""
    healing = {"parameters": 10, "trained": "projections", "trained_on": "text", "steps": 12, "seconds": 30.0}
    same = weights_words(PruningPlan([], 1, "s", healing={**healing, "before": 0.0072, "after": 0.0072}))
    assert same.endswith("12 steps, none of which helped on other inputs, so the weights before them were kept.")
    better = weights_words(PruningPlan([], 1, "s", healing={**healing, "before": 0.0072, "after": 0.005}))
    assert better.endswith("12 steps, loss 0.0072 -> 0.005 on inputs that were not trained on.")


def test_the_card_of_a_checkpoint_shows_what_it_costs(tmp_path: Path, evaluation: EvaluationSection) -> None:
    cost = {"metric": "divergence", "title": "divergence", "before": 3e-8, "after": 0.02, "inputs": "b" * 64}
    chosen = {"score": "haar", "chosen_by": {"fraction": 0.25}, "evaluations": 9, "cost": cost}
    card = checkpoint_card(tmp_path, evaluation, **chosen)
    (measured,) = card.data.eval_results
    assert (measured.metric_type, measured.metric_value, measured.dataset_name) == ("divergence", 0.02, "text B")
    assert (card.data.pipeline_tag, card.data.base_model) == ("fill-mask", "someone/base")
    assert "| divergence | before | after |" in card.text
    assert "| all inputs | 0 | 0.02 |" in card.text
    assert "95 % interval over inputs is 0.01 to 0.03" in card.text
    assert "ranked by Haar; the 25 % lowest went. 9 masked models were evaluated" in card.text
    assert "`oattn prune REPORT --fraction 0.25 --score haar`" in card.text
    assert "| Random | 0.0500 | 0.2000 |" in card.text
    assert 'AutoModelForMaskedLM.from_pretrained("me/small", trust_remote_code=True)' in card.text
    for path in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", card.text):
        assert (tmp_path / path).exists()
    assert (tmp_path / "figures").is_dir()
    assert EvaluationSection.from_json(read_json(tmp_path / "evaluation.json")) == evaluation


def test_the_map_of_heads() -> None:
    config = {"num_hidden_layers": 2, "num_attention_heads": 3}
    assert _head_map([(0, 1), (1, 2)], 6, config) == "0  ·X·\n1  ··X"
    assert _head_map([(0, 1)], 7, config) == ""


def test_a_licence_is_not_asked_for_five_times_where_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card took half a minute of the client's retries on a machine without a network."""
    from oattn_hub.models.identify import license_of

    asked: list[bool] = []

    def download(*_: object, local_files_only: bool = False, **__: object) -> str:
        asked.append(local_files_only)
        raise OSError

    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    assert license_of("someone/base") is None
    assert asked == [True]  # what was downloaded before is still read
