"""Transformer-XL (Dai et al. 2019), which transformers 5 no longer has, for checkpoints in the Hub's layout.

Relative positions, segment memory, adaptive softmax. Names of the parameters are those of
`transfo-xl/transfo-xl-wt103`; outputs equal those of transformers 4.35 (tests/data/models).

>>> config = TransfoXLConfig(vocab_size=50, cutoffs=[10], d_model=16, d_embed=16, n_head=2, d_head=8, d_inner=32,
...                          n_layer=2, mem_len=4, clamp_len=8)
>>> model = TransfoXLLMHeadModel(config).eval()
>>> output = model(torch.tensor([[1, 2, 3]]))
>>> tuple(output.logits.shape), len(output.mems), tuple(output.mems[0].shape)
((1, 3, 50), 2, (4, 1, 16))
"""

from dataclasses import dataclass
from typing import Any, cast

import torch
from huggingface_hub.dataclasses import strict
from torch import nn
from torch.nn import functional
from transformers import PreTrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.utils.generic import ModelOutput

from oattn_hub.models.adaptive import AdaptiveEmbedding, AdaptiveLogSoftmax, Clusters

Memory = list[torch.Tensor]  # one (memory, batch, d_model) tensor per layer: the layer's past inputs


@strict
class TransfoXLConfig(PreTrainedConfig):
    """Shape of a Transformer-XL, with the keys of the Hub's config.json.

    `mem_len` past positions are remembered; `same_length` lets every query see the same number of keys; distances
    beyond `clamp_len` count as `clamp_len` (0 or less: never). `untie_r` gives each layer its own position biases.
    """

    model_type = "transfo-xl"
    keys_to_ignore_at_inference = ("mems",)
    attribute_map = {  # noqa: RUF012 - a class attribute of the base class, not a default of an instance
        "n_token": "vocab_size",
        "hidden_size": "d_model",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
        "head_dim": "d_head",
    }

    vocab_size: int = 267735
    cutoffs: list[int] | tuple[int, ...] = (20000, 40000, 200000)
    d_model: int = 1024
    d_embed: int = 1024
    n_head: int = 16
    d_head: int = 64
    d_inner: int = 4096
    div_val: int = 4
    pre_lnorm: bool = False
    n_layer: int = 18
    mem_len: int = 1600
    clamp_len: int = 1000
    same_length: bool = True
    tie_projs: list[bool] | None = None  # which output projections are the input's; None: all but the first
    dropout: float = 0.1
    dropatt: float = 0.0
    untie_r: bool = True
    proj_init_std: float = 0.01
    init_std: float = 0.02
    layer_norm_epsilon: float = 1e-5
    tie_word_embeddings: bool = True
    eos_token_id: int | None = 0

    def __post_init__(self, **kwargs: Any) -> None:
        if kwargs.pop("attn_type", 0) != 0:
            raise ValueError("attn_type must be 0: only Transformer-XL's own relative attention is implemented.")
        if self.same_length and self.mem_len <= 0:
            raise ValueError(
                f"same_length=True needs mem_len > 0, got {self.mem_len}: no query would see a key. "
                "Set same_length=False."
            )
        if self.tie_projs is None:
            self.tie_projs = [False] + [kwargs.pop("proj_share_all_but_first", True)] * len(self.cutoffs)
        super().__post_init__(**kwargs)  # type: ignore[no-untyped-call]

    @property
    def clusters(self) -> Clusters:
        return Clusters(self.vocab_size, tuple(self.cutoffs), self.d_embed, self.div_val)


class RelativeAttention(nn.Module):
    """Attention whose scores are (q + r_w)k' + (q + r_r)p', p a projection of the distance from query to key."""

    def __init__(self, config: TransfoXLConfig) -> None:
        super().__init__()
        self.n_head, self.d_head = config.n_head, config.d_head
        self.pre_lnorm = config.pre_lnorm
        width = config.n_head * config.d_head
        self.qkv_net = nn.Linear(config.d_model, 3 * width, bias=False)
        self.o_net = nn.Linear(width, config.d_model, bias=False)
        self.r_net = nn.Linear(config.d_model, width, bias=False)
        self.r_w_bias = nn.Parameter(torch.zeros(config.n_head, config.d_head))
        self.r_r_bias = nn.Parameter(torch.zeros(config.n_head, config.d_head))
        self.layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_epsilon)
        self.drop = nn.Dropout(config.dropout)
        self.dropatt = nn.Dropout(config.dropatt)

    def forward(
        self, hidden: torch.Tensor, memory: torch.Tensor, distances: torch.Tensor, hidden_keys: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """New hidden state (batch, query, d_model) and attention (batch, head, query, key).

        Args:
            hidden: (batch, query, d_model).
            memory: (batch, memory, d_model), put before `hidden` as keys and values.
            distances: (key, d_model), the sinusoids of the distances key count - 1 … 0.
            hidden_keys: (query, key), True where the query must not look.
        """
        source = torch.cat([memory, hidden], dim=1)
        query, key, value = self.qkv_net(self.layer_norm(source) if self.pre_lnorm else source).chunk(3, dim=-1)
        query = self._heads(query[:, -hidden.shape[1] :])
        key, value = self._heads(key), self._heads(value)
        position = self._heads(self.r_net(distances))
        content = torch.einsum("bind,bjnd->bnij", query + self.r_w_bias, key)
        relative = shift_relative(torch.einsum("bind,jnd->bnij", query + self.r_r_bias, position))
        scores = (content + relative) * self.d_head**-0.5
        logits = scores.masked_fill(hidden_keys, torch.finfo(scores.dtype).min)
        attention = functional.softmax(logits, dim=-1)
        output = torch.einsum("bnij,bjnd->bind", self.dropatt(attention), value).flatten(2)
        output = hidden + self.drop(self.o_net(output))
        return (output if self.pre_lnorm else self.layer_norm(output)), attention

    def _heads(self, projected: torch.Tensor) -> torch.Tensor:
        return projected.view(*projected.shape[:-1], self.n_head, self.d_head)


def shift_relative(by_distance: torch.Tensor) -> torch.Tensor:
    """Turn (…, query, distance) into (…, query, key): row i moves left by (queries - 1 - i), Dai et al., appendix B.

    >>> shift_relative(torch.tensor([[2.0, 1.0, 0.0], [2.0, 1.0, 0.0]]))   # 2 queries, 3 keys; entries are distances
    tensor([[1., 0., 0.],
            [2., 1., 0.]])
    """
    *lead, queries, keys = by_distance.shape
    padded = functional.pad(by_distance, (1, 0)).reshape(*lead, keys + 1, queries)
    return padded[..., 1:, :].reshape(*lead, queries, keys)


class FeedForward(nn.Module):
    def __init__(self, config: TransfoXLConfig) -> None:
        super().__init__()
        self.pre_lnorm = config.pre_lnorm
        self.CoreNet = nn.Sequential(  # the capital letters are the checkpoint's
            nn.Linear(config.d_model, config.d_inner),
            nn.ReLU(),
            nn.Dropout(config.dropout),
            nn.Linear(config.d_inner, config.d_model),
            nn.Dropout(config.dropout),
        )
        self.layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_epsilon)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        change: torch.Tensor = self.CoreNet(self.layer_norm(hidden) if self.pre_lnorm else hidden)
        changed: torch.Tensor = hidden + change
        return changed if self.pre_lnorm else cast(torch.Tensor, self.layer_norm(changed))


class DecoderLayer(nn.Module):
    def __init__(self, config: TransfoXLConfig) -> None:
        super().__init__()
        self.dec_attn = RelativeAttention(config)
        self.pos_ff = FeedForward(config)

    def forward(
        self, hidden: torch.Tensor, memory: torch.Tensor, distances: torch.Tensor, hidden_keys: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, attention = self.dec_attn(hidden, memory, distances, hidden_keys)
        return self.pos_ff(hidden), attention


@dataclass
class TransfoXLModelOutput(ModelOutput):
    """Hidden state, the memory to pass to the next segment, and on request all hidden states and attentions."""

    last_hidden_state: torch.Tensor | None = None
    mems: Memory | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None


@dataclass
class TransfoXLLMHeadModelOutput(ModelOutput):
    """With labels `loss` and `losses` (batch, tokens - 1); without them `logits`, the words' log probabilities."""

    loss: torch.Tensor | None = None
    losses: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    mems: Memory | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None


class TransfoXLPreTrainedModel(PreTrainedModel):
    config: TransfoXLConfig
    config_class = TransfoXLConfig
    base_model_prefix = "transformer"
    _keys_to_ignore_on_load_unexpected = [r"pos_emb\.inv_freq"]  # noqa: RUF012 - the base class's; recomputed here

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        std = self.config.init_std
        if isinstance(module, nn.Linear | nn.Embedding):
            init.normal_(module.weight, 0.0, std)
            if isinstance(module, nn.Linear) and module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.LayerNorm):
            init.normal_(module.weight, 1.0, std)
            init.zeros_(module.bias)
        elif isinstance(module, RelativeAttention | TransfoXLModel) and hasattr(module, "r_w_bias"):
            init.normal_(module.r_w_bias, 0.0, std)
            init.normal_(module.r_r_bias, 0.0, std)
        elif isinstance(module, nn.ParameterList):
            for projection in module:
                init.normal_(projection, 0.0, self.config.proj_init_std)
        elif isinstance(module, AdaptiveLogSoftmax) and module.clusters.cutoffs:
            init.normal_(module.cluster_weight, 0.0, std)
            init.zeros_(module.cluster_bias)


class TransfoXLModel(TransfoXLPreTrainedModel):
    """The decoder stack: token ids and memory in, hidden states and new memory out."""

    def __init__(self, config: TransfoXLConfig) -> None:
        super().__init__(config)
        self.word_emb = AdaptiveEmbedding(config.clusters, config.d_model)
        self.drop = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.n_layer))
        self.mem_len, self.same_length = config.mem_len, config.same_length
        if not config.untie_r:
            self.r_w_bias = nn.Parameter(torch.zeros(config.n_head, config.d_head))
            self.r_r_bias = nn.Parameter(torch.zeros(config.n_head, config.d_head))
            self._tied_weights_keys = {
                rf"layers\.\d+\.dec_attn\.{name}$": f"{name}$" for name in ("r_w_bias", "r_r_bias")
            }
        self.post_init()  # type: ignore[no-untyped-call]

    def get_input_embeddings(self) -> nn.Module:
        return self.word_emb

    def init_mems(self, batch: int) -> Memory:
        """The memory at the start: zeros, as in transformers; a zero vector is a key like any other."""
        some = next(self.parameters())
        return [some.new_zeros(self.mem_len, batch, self.config.d_model) for _ in self.layers]

    def forget_memory(self) -> None:
        """From now on read every segment on its own; attention is then square, (tokens, tokens)."""
        self.mem_len, self.same_length = 0, False

    def forward(
        self,
        input_ids: torch.Tensor,
        mems: Memory | tuple[()] | None = None,
        attention_mask: torch.Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        **_: Any,
    ) -> TransfoXLModelOutput:
        """Read one segment.

        Args:
            input_ids: (batch, tokens).
            attention_mask: (batch, tokens); padding may only follow the text, where no real token sees it.
            mems: the `mems` of the previous segment. None starts with zeros (`init_mems`), `()` with no memory at
                all, so that attention is square.
            output_attentions: return attention probabilities (batch, head, query, key) of every layer.
            output_hidden_states: return the embedding and every layer's output.
        """
        if attention_mask is not None and bool((attention_mask.diff(dim=1) > 0).any()):
            raise ValueError("Transformer-XL has no padding mask: put padding after the text (padding_side='right').")
        hidden = self.drop(self.word_emb(input_ids))
        batch, n_queries, width = hidden.shape
        if mems is None:
            mems = self.init_mems(batch)
        memories = [memory.transpose(0, 1) for memory in mems] or [hidden.new_empty(batch, 0, width)] * len(self.layers)
        n_memory = memories[0].shape[1]
        distances = self.drop(self._distance_waves(n_memory + n_queries, hidden))
        hidden_keys = self._hidden_keys(n_queries, n_memory, hidden.device)
        states, attentions = [hidden], []
        for layer, memory in zip(self.layers, memories, strict=True):
            hidden, attention = layer(hidden, memory, distances, hidden_keys)
            states.append(hidden)
            attentions.append(attention)
        hidden = states[-1] = self.drop(hidden)
        return TransfoXLModelOutput(
            last_hidden_state=hidden,
            mems=self._remember(memories, states[:-1]),
            hidden_states=tuple(states) if self._wants("hidden_states", output_hidden_states) else None,
            attentions=tuple(attentions) if self._wants("attentions", output_attentions) else None,
        )

    def _wants(self, what: str, asked: bool | None) -> bool:
        return bool(getattr(self.config, f"output_{what}", False) if asked is None else asked)

    def _distance_waves(self, n_keys: int, like: torch.Tensor) -> torch.Tensor:
        """Sinusoids of the distances n_keys - 1 … 0, (key, d_model)."""
        distance = torch.arange(n_keys - 1, -1, -1, device=like.device, dtype=torch.float32)
        if self.config.clamp_len > 0:
            distance = distance.clamp(max=self.config.clamp_len)
        width = self.config.d_model
        frequency = 1 / 10000 ** (torch.arange(0.0, width, 2.0, device=like.device) / width)
        angle = torch.outer(distance, frequency)
        return torch.cat([angle.sin(), angle.cos()], dim=-1).to(like.dtype)

    def _hidden_keys(self, n_queries: int, n_memory: int, device: torch.device) -> torch.Tensor:
        """(query, key), True for keys in the query's future and, with `same_length`, too far in its past."""
        every = torch.ones(n_queries, n_memory + n_queries, dtype=torch.bool, device=device)
        mask = every.triu(1 + n_memory)
        if self.same_length:
            n_too_many = max(0, n_memory + n_queries - self.mem_len)
            mask |= every.tril(n_too_many - n_queries)
        return mask

    def _remember(self, memories: list[torch.Tensor], inputs: list[torch.Tensor]) -> Memory:
        """The last `mem_len` inputs of each layer, (memory, batch, d_model)."""
        joined = [torch.cat(pair, dim=1).detach() for pair in zip(memories, inputs, strict=True)]
        return [past[:, max(0, past.shape[1] - self.mem_len) :].transpose(0, 1) for past in joined]


class TransfoXLLMHeadModel(TransfoXLPreTrainedModel):
    """Transformer-XL language model with adaptive softmax, its tables tied to the input embedding."""

    def __init__(self, config: TransfoXLConfig) -> None:
        super().__init__(config)
        self.transformer = TransfoXLModel(config)
        self.crit = AdaptiveLogSoftmax(config.clusters, config.d_model)
        self._tied_weights_keys = self._tied_names()
        self.post_init()  # type: ignore[no-untyped-call]

    def _tied_names(self) -> dict[str, str]:
        source, embedding = "transformer.word_emb", self.transformer.word_emb
        names = {
            f"crit.out_layers.{i}.weight": f"{source}.emb_layers.{i}.weight" for i in range(len(embedding.emb_layers))
        }
        last = len(embedding.emb_projs) - 1
        for index, tied in enumerate((self.config.tie_projs or [])[: len(self.crit.out_projs)]):
            if tied:
                names[f"crit.out_projs.{index}$"] = f"{source}.emb_projs.{min(index, last)}$"
        return names

    def get_input_embeddings(self) -> nn.Module:
        return self.transformer.word_emb

    def init_mems(self, batch: int) -> Memory:
        return self.transformer.init_mems(batch)

    def forward(
        self,
        input_ids: torch.Tensor,
        mems: Memory | tuple[()] | None = None,
        labels: torch.Tensor | None = None,
        **options: Any,
    ) -> TransfoXLLMHeadModelOutput:
        """As `TransfoXLModel.forward`; `labels` (usually `input_ids`) are shifted here, negative ones are ignored."""
        output = self.transformer(input_ids, mems=mems, **options)
        hidden = output.last_hidden_state
        answer = TransfoXLLMHeadModelOutput(
            mems=output.mems, hidden_states=output.hidden_states, attentions=output.attentions
        )
        if labels is None:
            answer.logits = self.crit(hidden)
        else:
            following = labels[:, 1:]
            answer.losses = self.crit.losses(hidden[:, :-1], following)
            answer.loss = answer.losses.sum() / (following >= 0).sum()
        return answer
