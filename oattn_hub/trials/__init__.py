"""A pruned checkpoint and its base model, tried by the tools that others judge models with, through their own APIs.

``lm-eval`` for language models, sentence-transformers' evaluators and ``mteb`` for embedders. What they find lies in
the checkpoint's folder (``benchmarks.json``) and goes into its card and metadata.
"""

from oattn_hub.trials.embedders import mteb_scores, sentence_scores
from oattn_hub.trials.language import lm_eval_scores
from oattn_hub.trials.pair import ModelPair, open_pair
from oattn_hub.trials.scores import TrialScore, keep_scores, kept_scores

__all__ = [
    "ModelPair",
    "TrialScore",
    "keep_scores",
    "kept_scores",
    "lm_eval_scores",
    "mteb_scores",
    "open_pair",
    "sentence_scores",
]
