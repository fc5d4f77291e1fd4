"""The refit: the exact ridge solution, streamed or not, behind layers that were refitted before, for every family."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import oattn_hub as oh
from oattn_hub.errors import InvalidInput
from oattn_hub.models.load import load_model
from oattn_hub.pruning import load_pruned
from oattn_hub.pruning.compensate import (
    STRENGTH,
    STRENGTHS,
    Compensator,
    Moments,
    Refit,
    bias_only,
    collect,
    fitting_strength,
    refitted,
    ridge,
    scaled,
)
from oattn_hub.pruning.masks import masked_sites
from oattn_hub.pruning.projections import matrix, places
from oattn_hub.pruning.readout import readouts
from oattn_hub.pruning.sites import head_sites
from oattn_hub.pruning.watching import watched_projections


def drawn(count: int, seed: int = 0, tokens: int = 16) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [{"input_ids": torch.randint(3, 60, (1, tokens), generator=generator)} for _ in range(count)]


def rows(seed: int, tokens: int = 50, features: int = 6) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(tokens, features, generator=generator, dtype=torch.float64)
    x = z + 0.3 * torch.randn(tokens, features, generator=generator, dtype=torch.float64)
    return x, z, torch.rand(tokens, generator=generator, dtype=torch.float64) + 0.1


@pytest.mark.parametrize("with_shift", [True, False])
def test_the_refit_is_the_ridge_solution(with_shift: bool) -> None:
    """By hand: least squares on the weighted rows, and one row for every weight that pulls it to its old value."""
    x, z, weights = rows(0)
    old = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    kept = [0, 1, 4]
    moments = Moments(6)
    moments.add(x, z, weights)
    found = ridge(moments, old, kept, strength=0.1, with_shift=with_shift)

    design = x[:, kept].numpy()
    mean = np.average(design, axis=0, weights=weights.numpy()) if with_shift else 0.0
    penalty = 0.1 * np.mean(weights.numpy() @ (design - mean) ** 2)
    root = np.sqrt(weights.numpy())[:, None]
    ones = np.ones((50, 1)) if with_shift else np.zeros((50, 0))
    pull = np.hstack([np.sqrt(penalty) * np.eye(3), np.zeros((3, ones.shape[1]))])
    left = np.vstack([root * np.hstack([design, ones]), pull])
    right = np.vstack([root * (z @ old).numpy(), np.sqrt(penalty) * old[kept].numpy()])
    solution = np.linalg.lstsq(left, right, rcond=None)[0]
    assert found.weight[kept].numpy() == pytest.approx(solution[:3], abs=1e-10)
    assert not found.weight[[2, 3, 5]].any()
    if with_shift:
        assert found.shift is not None
        assert found.shift.numpy() == pytest.approx(solution[3], abs=1e-10)
    else:
        assert found.shift is None


def test_scaling_is_the_least_squares_solution() -> None:
    """By hand: one column for what each kept head writes, over tokens and features, and a row that pulls to 1."""
    x, z, weights = rows(0)
    old = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    heads = [[0, 1], [4, 5]]
    moments = Moments(6)
    moments.add(x, z, weights)
    found = scaled(moments, old, heads, strength=0.1)

    root = np.sqrt(weights.numpy())[:, None]
    columns = np.stack([(root * (x[:, one] @ old[one]).numpy()).ravel() for one in heads], axis=1)
    penalty = 0.1 * np.mean((columns**2).sum(0))
    left = np.vstack([columns, np.sqrt(penalty) * np.eye(2)])
    right = np.concatenate([(root * (z @ old).numpy()).ravel(), np.sqrt(penalty) * np.ones(2)])
    factors = np.linalg.lstsq(left, right, rcond=None)[0]
    for rows_of_one, factor in zip(heads, factors, strict=True):
        assert found.weight[rows_of_one].numpy() == pytest.approx(factor * old[rows_of_one].numpy(), abs=1e-10)
    assert not found.weight[[2, 3]].any()
    assert found.shift is None


def test_scaling_lies_between_the_plain_cut_and_the_refit(tiny_bert: Any) -> None:
    loaded, sites, heads = load_model(tiny_bert), head_sites(tiny_bert), [(0, 1), (1, 0)]
    errors = {}
    for kind in ("refit", "scale", "none"):
        compensator = Compensator(loaded, sites, drawn(24), kind, strength=1e-6, new_biases=False)  # type: ignore[arg-type]
        refits = compensator.refits(heads)
        errors[kind] = 0.0
        for site in sites:
            old = matrix(site)
            kept = places(site, {0, 1, 2, 3} - {head for layer, head in heads if layer == site.layer})
            plain = torch.zeros_like(old)
            plain[kept] = old[kept]
            errors[kind] += compensator.unpruned[site.module_name].error(
                old, refits.get(site.module_name, Refit(plain))
            )
    assert errors["refit"] < errors["scale"] < errors["none"]


def test_streaming_equals_one_shot() -> None:
    x, z, weights = rows(2)
    whole, streamed = Moments(6), Moments(6)
    whole.add(x, z, weights)
    for start in range(0, 50, 7):
        part = slice(start, start + 7)
        streamed.add(x[part], z[part], weights[part])
    for name in ("x", "z", "xx", "xz"):
        torch.testing.assert_close(getattr(whole, name), getattr(streamed, name), rtol=1e-12, atol=1e-12)
    assert whole.total == pytest.approx(streamed.total)


def test_bias_only_keeps_weights_and_makes_the_mean_good() -> None:
    x, z, weights = rows(3)
    old = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    moments = Moments(6)
    moments.add(x, z, weights)
    found = bias_only(moments, old, [0, 5])
    assert torch.equal(found.weight[[0, 5]], old[[0, 5]])
    assert found.shift is not None
    now, then = x[:, [0, 5]] @ old[[0, 5]] + found.shift, z @ old
    torch.testing.assert_close(weights @ now, weights @ then)


def test_a_layer_that_loses_everything_gives_its_mean() -> None:
    x, z, weights = rows(4)
    old = torch.ones(6, 2, dtype=torch.float64)
    moments = Moments(6)
    moments.add(x, z, weights)
    found = ridge(moments, old, [])
    assert not found.weight.any()
    assert found.shift is not None
    torch.testing.assert_close(found.shift, (weights @ z @ old) / weights.sum())


def test_sweeps_arrive_where_going_layer_by_layer_arrives(tiny_bert: Any) -> None:
    """Three layers: after three sweeps every layer was solved behind layers that were final."""
    loaded, sites, inputs = load_model(tiny_bert), head_sites(tiny_bert), drawn(5)
    heads = [(0, 1), (1, 0), (1, 3), (2, 2)]
    by_layer: dict[str, Any] = {}
    for layer in range(3):
        earlier = [head for head in heads if head[0] <= layer]
        compensator = Compensator(loaded, sites, inputs, sweeps=1)
        moments = collect(loaded, sites, inputs, earlier, by_layer)
        by_layer |= {name: refit for name, refit in compensator.solve(moments, earlier).items() if name not in by_layer}
    found = Compensator(loaded, sites, inputs, sweeps=3).refits(heads)
    assert set(found) == set(by_layer)
    for name in found:
        torch.testing.assert_close(found[name].weight, by_layer[name].weight, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(found[name].shift, by_layer[name].shift, rtol=1e-4, atol=1e-6)


def test_tokens_count_by_the_size_of_the_stream(tiny_bert: Any) -> None:
    loaded, sites = load_model(tiny_bert), head_sites(tiny_bert)
    with torch.no_grad():
        hidden = tiny_bert(**drawn(1)[0], output_hidden_states=True).hidden_states
    found = collect(loaded, sites, drawn(1))
    for layer, site in enumerate(sites):
        expected = float((1 / hidden[layer].norm(dim=-1) ** 2).sum())
        assert found[site.module_name].total == pytest.approx(expected, rel=1e-4)


def test_padding_does_not_count(tiny_bert: Any) -> None:
    loaded, sites = load_model(tiny_bert), head_sites(tiny_bert)
    plain, padded = drawn(1)[0], drawn(1)[0]
    mask = torch.ones(1, 20, dtype=torch.long)
    mask[:, 16:] = 0
    padded = {
        "input_ids": torch.cat([plain["input_ids"], torch.zeros(1, 4, dtype=torch.long)], 1),
        "attention_mask": mask,
    }
    one, two = collect(loaded, sites, [plain]), collect(loaded, sites, [padded])
    for name in one:
        torch.testing.assert_close(one[name].xx, two[name].xx, rtol=1e-4, atol=1e-8)


# one of each way to hold an output projection: Linear with and without bias, Conv1D, Conv2d, a shared module, several
# calls, windows, raw parameters (torch's own attention, XLNet's einsum), cross attention, grouped queries
FAMILIES = [
    "bert", "llama", "gpt2", "t5", "albert", "swin", "whisper", "clip", "timm-vit", "xlnet", "torch-encoder",
    "torch-transformer", "gpt_neox", "siglip",
]  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_comes_closer_to_what_it_said(zoo: Any, name: str) -> None:
    """In the first layer that loses a head the refit is optimal, so its weighted error cannot be above the mask's."""
    model, batch = zoo.BY_NAME[name].build()
    loaded, sites = load_model(model), head_sites(model)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    layers = sites[0].n_turns
    heads = [(site.layer, 0) for site in (sites[:layers] if layers > 1 else [sites[0], sites[-1]])]
    errors = {}
    for kind in ("none", "bias", "refit"):
        compensator = Compensator(loaded, sites, [batch], kind, strength=1e-4)
        refits = compensator.refits(heads)
        assert bool(refits) == (kind != "none")
        with refitted(sites, refits), masked_sites(model, sites, heads):
            errors[kind] = _output(loaded, sites, batch, heads[0][0])
    whole = _output(loaded, sites, batch, heads[0][0])
    distance = {kind: float((output - whole).norm()) for kind, output in errors.items()}
    assert distance["none"] > 0
    assert distance["refit"] <= distance["none"] * 1.001
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])


def _output(loaded: Any, sites: Any, batch: Any, layer: int) -> torch.Tensor:
    """What the layer's output projection gives, its bias included."""
    found: list[torch.Tensor] = []

    def see(site: Any, features: torch.Tensor, output: torch.Tensor) -> None:
        if site.layer == layer:
            found.append(output.clone())

    with torch.no_grad(), watched_projections(loaded.model, sites, see):
        loaded.forward(batch)
    return found[0]


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "t5", "albert", "timm-vit", "torch-encoder", "xlnet"])
def test_a_refitted_cut_is_the_refitted_mask(zoo: Any, name: str) -> None:
    model, batch = zoo.BY_NAME[name].build()
    loaded, sites = load_model(model), head_sites(model)
    plan = oh.PruningPlan.from_heads(model, [(site.layer, 1) for site in sites])
    pruned = plan.apply(model, inputs=[batch], measure=False, compensate=True)  # compares cut and mask itself
    assert pruned.plan.compensation is not None
    assert pruned.plan.compensation["kind"] == "refit"
    with torch.no_grad(), refitted(sites, pruned.plan.refits or {}), masked_sites(model, sites, plan.heads):
        expected = readouts(loaded, batch)
    for one, other in zip(expected, readouts(pruned.loaded, batch), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    plain = plan.apply(model, inputs=[batch], measure=False, compensate=False)
    with torch.no_grad(), plan.masked(model):
        expected = readouts(loaded, batch)
    for one, other in zip(expected, readouts(plain.loaded, batch), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_a_refitted_checkpoint_reloads_equal(zoo: Any, name: str, tmp_path: Path) -> None:
    """Llama's output projection has no bias, and the refitted one has."""
    model, batch = zoo.BY_NAME[name].build()
    plan = oh.PruningPlan.from_heads(model, [(0, 1), (1, 2)])
    pruned = plan.apply(model, inputs=[batch], measure=False, compensate=True)
    pruned.save_pretrained(tmp_path)
    again = load_pruned(tmp_path)
    state = pruned.model.state_dict()
    assert set(again.state_dict()) == set(state)
    for key, value in again.state_dict().items():
        assert torch.equal(value, state[key])
    with torch.no_grad():
        assert torch.equal(again(**batch)[0], pruned.model(**batch)[0])


def test_refits_travel_beside_their_plan(zoo: Any, tmp_path: Path) -> None:
    model, batch = zoo.BY_NAME["llama"].build()
    pruned = oh.PruningPlan.from_heads(model, [(0, 1)]).apply(model, inputs=[batch], measure=False, compensate=True)
    pruned.plan.save(tmp_path / "plan.json")
    plan = oh.PruningPlan.load_file(tmp_path / "plan.json")
    again = plan.apply(model, inputs=[batch], measure=False)
    for key, value in again.model.state_dict().items():
        torch.testing.assert_close(value, pruned.model.state_dict()[key], rtol=0, atol=0)
    (tmp_path / "plan.safetensors").unlink()
    with pytest.raises(InvalidInput, match="not at hand"):
        oh.PruningPlan.load_file(tmp_path / "plan.json").apply(model, inputs=[batch])
    bare = oh.PruningPlan.load_file(tmp_path / "plan.json").apply(model, inputs=[batch], compensate="none")
    assert bare.plan.compensation is None


def test_the_strength_is_what_does_best_on_other_texts() -> None:
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn(24, 24, generator=generator, dtype=torch.float64)
    old = torch.randn(24, 5, generator=generator, dtype=torch.float64)

    def texts(count: int, alike: bool) -> Moments:
        """Texts of 50 tokens that all say the same, or that differ."""
        moments = Moments(24)
        for _ in range(count):
            outputs = torch.randn(1 if alike else 50, 24, generator=generator, dtype=torch.float64) @ mixing
            outputs = outputs.expand(50, 24) + 0.01 * torch.randn(50, 24, generator=generator, dtype=torch.float64)
            moments.add(outputs, outputs, torch.ones(50, dtype=torch.float64))
        return moments

    kept = list(range(4, 24))
    few, fresh = texts(10, alike=True), texts(200, alike=True)
    chosen = fitting_strength(few, old, [kept], True)
    errors = {strength: fresh.error(old, ridge(few, old, kept, strength)) for strength in STRENGTHS}
    assert chosen > fitting_strength(texts(60, alike=False), old, [kept], True)
    assert errors[chosen] < 0.5 * errors[STRENGTHS[0]] + 0.5 * min(errors.values())
    one = Moments(24)
    one.add(*[torch.randn(9, 24, generator=generator)] * 2, torch.ones(9))
    assert fitting_strength(one, old, [kept], True) == STRENGTH  # nothing to try it on


def test_the_error_is_the_regression_s_own() -> None:
    x, z, weights = rows(1)
    old = torch.randn(6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    moments = Moments(6)
    moments.add(x, z, weights)
    one, other = (ridge(moments, old, [0, 1, 4], strength) for strength in (0.1, 10.0))

    def direct(refit: Refit) -> float:
        return float((weights * (x @ refit.weight + refit.shift - z @ old).square().sum(1)).sum())

    difference = moments.error(old, one) - moments.error(old, other)
    assert difference == pytest.approx(direct(one) - direct(other))
