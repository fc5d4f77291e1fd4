"""From a model to the Hub and back, in fresh processes with the real libraries."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import HfApi

from oattn_hub.local_hub import LocalHub
from oattn_hub.models.aligned import FEW_UNITS

Run = Callable[..., str]
BERT = """
import torch
from transformers import BertConfig, BertModel
torch.manual_seed(0)
config = BertConfig(vocab_size=8000, hidden_size=48, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64)
model = BertModel(config).eval()
tokens = torch.tensor([[101, 7592, 2088, 2003, 1037, 3231, 102]])
"""


def snippets(readme: str) -> list[str]:
    """The code blocks of a card, each of at most three lines."""
    found = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    assert all(len([line for line in code.splitlines() if line.strip()]) <= 3 for code in found)
    return [str(code) for code in found]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A local Hub with a pruned BERT, cut and masked, and a masked ViT of timm; and what each of them computes."""
    import timm
    import torch
    from safetensors.torch import save_file

    from oattn_hub.pruning import PruningPlan

    folder = tmp_path_factory.mktemp("round-trip")
    with LocalHub(folder / "hub") as hub:
        place = {"token": hub.store.accounts.ensure("me").token, "endpoint": hub.url}
        made: dict[str, Any] = {}
        exec(BERT, made)
        tokens = made["tokens"]
        bert = PruningPlan.from_heads(made["model"], [(0, 1), (2, 0), (2, 3)]).apply(
            made["model"], inputs=[{"input_ids": tokens}]
        )
        commits = [bert.push_to_hub(f"me/bert-{v}", variant=v, license="mit", **place) for v in ("cut", "masked")]
        torch.manual_seed(0)
        vit = timm.create_model("vit_tiny_patch16_224", num_classes=7).eval()
        pruned_vit = PruningPlan.from_heads(vit, [(0, 1), (5, 2)]).apply(vit, measure=False)
        commits.append(pruned_vit.push_to_hub("me/vit", variant="masked", **place))
        image = torch.linspace(0, 1, 3 * 224 * 224).reshape(1, 3, 224, 224)
        with torch.no_grad():
            outputs = {"bert": bert.model(tokens).last_hidden_state, "vit": pruned_vit.model(image)}
        save_file({**outputs, "tokens": tokens, "image": image}, folder / "expected.safetensors")
        yield SimpleNamespace(hub=hub, folder=folder, commits=commits, pruned=bert, place=place)


def card(published: SimpleNamespace, repo_id: str) -> str:
    repo = published.hub.store.repo("model", repo_id)
    return str(published.hub.store.blobs.read(repo.resolve("main").files["README.md"].sha256).decode())


def test_a_checkpoint_is_one_commit_and_a_second_push_none(published: SimpleNamespace) -> None:
    for commit in published.commits:
        repo = published.hub.store.repo("model", commit.repo_id)
        assert len(repo.history(repo.resolve("main"))) == 2
    again = published.pruned.push_to_hub("me/bert-cut", license="mit", **published.place)
    assert (again.changed, again.commit) == (False, published.commits[0].commit)


def test_the_cards_of_the_checkpoints(published: SimpleNamespace) -> None:
    text = card(published, "me/bert-cut")
    assert "library_name: transformers" in text
    assert "license: mit" in text
    assert "0  ·X··\n1  ····\n2  X··X\n" in text
    assert "| attention heads | 12 | 9 | -25.0 % |" in text
    assert "library_name: timm" in card(published, "me/vit")
    assert "| 5 | 2 |" in card(published, "me/vit")


def test_what_was_published_computes_the_same_elsewhere(published: SimpleNamespace, run_client: Run) -> None:
    """The snippets of the cards, run in a fresh process: the cut model to a few units in the last place."""
    checks = """
from safetensors.torch import load_file
expected = load_file({path!r})
def check(model, name, exact):
    given, wanted = (expected["tokens"], expected["bert"]) if name == "bert" else (expected["image"], expected["vit"])
    found = model.eval()(given)
    found = found.last_hidden_state if name == "bert" else found
    few = {few} * torch.finfo(wanted.dtype).eps * wanted.abs().max()  # oattn_hub may be away here
    assert (found - wanted).abs().max() <= (few if exact else 1e-5)
""".format(path=str(published.folder / "expected.safetensors"), few=FEW_UNITS)
    ours = [("bert-cut", 0), ("bert-masked", 0), ("vit", 0)]
    plain = [("bert-cut", 1), ("bert-masked", 1), ("vit", 1)]
    for name, chosen, before in (("with", ours, ""), ("without", plain, "sys.modules['oattn_hub'] = None\n")):
        code = f"import sys\n{before}import torch\n{checks}"
        for repo, number in chosen:
            code += snippets(card(published, f"me/{repo}"))[number]
            code += f"\ncheck(model, {repo.split('-')[0]!r}, exact={repo == 'bert-cut'})\n"
        run_client(published.hub, code, home=name)


def test_what_one_way_of_loading_loads_all_load(published: SimpleNamespace, run_client: Run, tmp_path: Path) -> None:
    """Plain and pruned, folder and repo: the loader, the loader of checkpoints, the analyzer."""
    code = f"""{BERT}
import oattn_hub as oh
model.save_pretrained({str(tmp_path / "plain")!r})
model.push_to_hub("me/plain")
pruned = oh.from_pretrained("me/bert-cut")
data = [{{"input_ids": tokens}}]
for source, whole in (({str(tmp_path / "plain")!r}, model), ("me/plain", model), ("me/bert-cut", pruned)):
    expected = whole(tokens).last_hidden_state
    loaded = oh.load_model(source)
    for found in (loaded.model, oh.from_pretrained(source)):
        assert torch.allclose(found(tokens).last_hidden_state, expected, atol=1e-5), source
    report = oh.analyze(source, data=data)
    assert (report.model.source, report.model.revision) == (loaded.source, loaded.revision)
    assert len(report.heads) == (12 if whole is model else 9)
"""
    run_client(published.hub, code)


def test_transformers_refuses_a_cut_checkpoint_without_its_code(published: SimpleNamespace, tmp_path: Path) -> None:
    from transformers import BertModel

    from oattn_hub.hub import pull

    folder = pull("me/bert-cut", cache_dir=tmp_path, **published.place)
    assert [path.name for path in folder.glob("*.py")] == ["modeling_pruned.py"]  # fetched, never run
    with pytest.raises(RuntimeError, match="size"):
        BertModel.from_pretrained(folder)


def test_no_path_of_this_machine_is_published(published: SimpleNamespace, tmp_path: Path) -> None:
    from oattn_hub.hub import push_checkpoint
    from oattn_hub.pruning import PruningPlan

    made: dict[str, Any] = {}
    exec(BERT, made)
    made["model"].save_pretrained(tmp_path / "secret-project")
    pruned = PruningPlan.from_heads(str(tmp_path / "secret-project"), [(0, 1)]).apply(measure=False)
    push_checkpoint(pruned, "me/y", dry_run=tmp_path / "out")
    for path in (path for path in (tmp_path / "out").rglob("*") if path.suffix in (".json", ".md", ".py")):
        assert str(tmp_path) not in path.read_text(), path.name


@pytest.mark.slow
def test_a_report_of_minilm_goes_round(
    plain_hub: LocalHub, run_client: Run, minilm_folder: Path, tmp_path: Path
) -> None:
    saved = str(tmp_path / "report")
    run_client(
        plain_hub,
        f"""
import oattn_hub as oh
report = oh.analyze({str(minilm_folder)!r}, batches=2, tokens=32)
report.save({saved!r})
assert report.push_to_hub("me/heads").changed
assert not report.push_to_hub("me/heads").changed
""",
    )
    code = f"""
import sys
import oattn_hub as oh
there, here = oh.load_report("me/heads"), oh.Report.load({saved!r})
assert there.heads == here.heads
assert there.model.revision == here.model.revision
assert (there.group().haar.entropies == here.group().haar.entropies).all()
assert here.model.source and there.model.source is None  # nobody needs to know the folders of this disk
assert "torch" not in sys.modules
from huggingface_hub import ModelCard
card = ModelCard.load("me/heads")
card.validate()
print(card.content)
"""
    (snippet,) = snippets(run_client(plain_hub, code, home="elsewhere"))
    assert "HeadRecord" in run_client(plain_hub, snippet, home="third")


@pytest.mark.slow
def test_an_ordinary_model_goes_round_in_both_modes(hub: LocalHub, run_client: Run, tmp_path: Path) -> None:
    """transformers' own push and load: the local Hub is not only for us."""
    code = f"""{BERT}
model.push_to_hub("me/plain")
again = BertModel.from_pretrained("me/plain", cache_dir={str(tmp_path / "other-cache")!r})
assert all(torch.equal(one, other) for one, other in zip(model.parameters(), again.parameters(), strict=True))
"""
    run_client(hub, code)


def test_every_file_of_a_private_base_repo_travels_along(plain_hub: LocalHub, run_client: Run, tmp_path: Path) -> None:
    """Its token was given by name, so nothing else knows it."""
    place = {"token": plain_hub.store.accounts.ensure("me").token, "endpoint": plain_hub.url}
    base = tmp_path / "base"
    made: dict[str, Any] = {}
    exec(BERT, made)
    made["model"].save_pretrained(base)
    belongings = {
        "modules.json": "[]",
        "1_Pooling/config.json": "{}",
        "LICENSE": "mine",
        "chat_template.jinja": "{{ x }}",
    }
    for name, text in {**belongings, "pytorch_model.bin": "no", "train.py": "no", "onnx/model.onnx": "no"}.items():
        (base / name).parent.mkdir(exist_ok=True)
        (base / name).write_text(text)
    HfApi(**place).create_repo("me/base", private=True)
    HfApi(**place).upload_folder(repo_id="me/base", folder_path=base)
    code = f"""
import oattn_hub as oh
from oattn_hub.pruning import PruningPlan
loaded = oh.load_model("me/base", token={place["token"]!r})
PruningPlan.from_heads(loaded, [(0, 1)]).apply(loaded, measure=False).save_pretrained({str(tmp_path / "out")!r})
"""
    run_client(plain_hub, code, HF_TOKEN="")
    written = {
        path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*") if path.is_file()
    }
    assert set(belongings) < written
    assert not written & {"pytorch_model.bin", "train.py", "onnx/model.onnx"}
