"""Tiny BERTs with a tokenizer, one of which kills the process that loads it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from oattn_hub.sweep import ModelJob, Status
from oattn_hub.sweep.state import Options
from oattn_hub.sweep.work import work_on

MakeModel = Callable[..., Path]
SMALL = Options(batches=2, tokens=8)

KILLER = """
import os, signal
from pathlib import Path
from transformers import BertConfig, BertModel

class KillingConfig(BertConfig):
    model_type = "killing-bert"

class KillingBert(BertModel):
    config_class = KillingConfig

    def __init__(self, config, **options):
        flag = Path(config.flag)
        if not (config.once and flag.exists()):
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        super().__init__(config, **options)
"""


class InProcess:
    """The engine of these tests: the same work, without the processes."""

    def run(self, root: Path, jobs: Sequence[ModelJob], options: Options) -> Iterator[tuple[ModelJob, Status]]:
        for job in jobs:
            yield job, work_on(root, job, options)


@pytest.fixture
def make_model(tmp_path: Path, save_word_tokenizer: Callable[[Path], int]) -> MakeModel:
    """``make_model("a")`` is the folder of a tiny BERT; ``kills="once"`` or ``"always"`` one that ends its worker."""

    def make(name: str, kills: str = "") -> Path:
        import torch
        from transformers import BertConfig, BertModel

        folder = tmp_path / "models" / name
        folder.mkdir(parents=True)
        words = save_word_tokenizer(folder)
        sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
        torch.manual_seed(len(name))
        config = BertConfig(vocab_size=words, max_position_embeddings=32, **sizes)
        BertModel(config).save_pretrained(folder)
        if kills:
            written = json.loads((folder / "config.json").read_text())
            written |= {"model_type": "killing-bert", "architectures": ["KillingBert"]}
            written |= {"once": kills == "once", "flag": str(folder / "killed")}
            written["auto_map"] = {"AutoConfig": "killer.KillingConfig", "AutoModel": "killer.KillingBert"}
            (folder / "config.json").write_text(json.dumps(written))
            (folder / "killer.py").write_text(KILLER)
        return folder

    return make
