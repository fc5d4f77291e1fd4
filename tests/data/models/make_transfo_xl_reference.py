"""Make the reference files of tests/models/test_transfo_xl.py with an old transformers release.

    python -m venv OLD && OLD/bin/pip install transformers==4.35.2 "numpy<2" torch sacremoses
    OLD/bin/python tests/data/models/make_transfo_xl_reference.py

Writes `transfo_xl_<case>/`: a tiny random checkpoint as the old release saves it (config.json, model.safetensors) and
`reference.safetensors`: inputs of two segments and what the old release answers to them, with memory carried over.
"""

from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import TransfoXLConfig, TransfoXLLMHeadModel

HERE = Path(__file__).parent
SHAPE = {"vocab_size": 60, "d_model": 16, "d_embed": 16, "n_head": 2, "d_head": 8, "d_inner": 24, "n_layer": 2}
# The Hub's setting; then every switch the other way.
CASES = {
    "wt103": {"cutoffs": [10, 20, 40], "div_val": 2, "mem_len": 6, "clamp_len": 9, "same_length": True},
    "plain": {
        "cutoffs": [15],
        "div_val": 1,
        "d_embed": 12,
        "mem_len": 5,
        "clamp_len": -1,
        "same_length": False,
        "pre_lnorm": True,
        "untie_r": False,
    },
}


def reference(model, segments):
    answers = {}
    with torch.no_grad():
        for name, start in (("zeros", None), ("empty", [torch.zeros(0, 2, 16)] * 2)):
            mems = start
            for index, words in enumerate(segments):
                output = model(words, mems=mems, output_attentions=True, output_hidden_states=True)
                losses = model(words, mems=mems, labels=words)
                answers[f"{name}.{index}.log_probabilities"] = output.prediction_scores
                answers[f"{name}.{index}.loss"] = losses.loss
                for layer in range(2):
                    answers[f"{name}.{index}.attention.{layer}"] = output.attentions[layer]
                    answers[f"{name}.{index}.memory.{layer}"] = output.mems[layer]
                answers[f"{name}.{index}.hidden"] = output.hidden_states[-1]
                mems = output.mems
    return {key: value.contiguous().clone() for key, value in answers.items()}


for case, options in CASES.items():
    torch.manual_seed(0)
    model = TransfoXLLMHeadModel(TransfoXLConfig(**{**SHAPE, **options})).eval()
    with torch.no_grad():  # the default 0.01 leaves attention almost uniform, which would test little
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    segments = [torch.randint(0, 60, (2, 8)), torch.randint(0, 60, (2, 5))]
    folder = HERE / f"transfo_xl_{case}"
    model.save_pretrained(folder, safe_serialization=True)
    inputs = {f"words.{index}": words for index, words in enumerate(segments)}
    save_file({**inputs, **reference(model, segments)}, folder / "reference.safetensors")
