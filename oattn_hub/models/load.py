"""``load_model``: a Hub id, a folder, a timm name or a module becomes a model that is ready to run."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any, Protocol, Unpack

from torch import nn

from oattn_hub.errors import InvalidInput, LoadError, MissingDependency, OattnError
from oattn_hub.files import read_json
from oattn_hub.models import TASKS, find_model_class, register_models
from oattn_hub.models.aligned import align_weights
from oattn_hub.models.describe import config_of, library_of, modality_of, processor_for
from oattn_hub.models.folders import check_model_folder, missing_weights
from oattn_hub.models.identify import (
    content_fingerprint,
    license_of,
    public_name,
    weights_fingerprint,
)
from oattn_hub.models.options import DeviceMap, HubOptions, LoadAgain, Processor
from oattn_hub.models.placement import Placement, moved_to
from oattn_hub.models.screening import screen_folder, screen_repo, tensors_only
from oattn_hub.models.timm_models import PICKLED_WEIGHTS, load_timm_folder
from oattn_hub.models.unwrap import is_sentence_encoder, unwrap
from oattn_hub.records import MANIFEST, OPTIONS_FROM_FILES, PRUNING_KEY, ModelInfo
from oattn_hub.tokens import default_token

_NO_SAFETENSORS = re.compile("(no|not appear to have) a? ?file named .*safetensors")
_PRUNED_FILES = ["*.json", "*.jinja", "*.model", "*.safetensors", "*.txt"]


@dataclass(frozen=True)
class LoadedModel:
    """A model in eval mode, with who it is.

    Attributes:
        model: The torch module.
        processor: Tokenizer, image processor or feature extractor; None if the checkpoint has none.
        info: The model's identity, which store, report, plan and checkpoint carry along.
        hub_options: How the Hub was asked for it (token, cache folder), for asking it again; in memory only.
        sentence_encoder: The SentenceTransformer whose first module the model is, if it came so; in memory only.
    """

    model: nn.Module
    processor: Any
    info: ModelInfo
    hub_options: HubOptions = field(default_factory=lambda: HubOptions(), repr=False)
    sentence_encoder: Any = field(default=None, repr=False)

    @property
    def model_id(self) -> str:
        """The name it was asked for by."""
        return self.info.id

    @property
    def revision(self) -> str | None:
        """Commit on the Hub, or a fingerprint of the weights."""
        return self.info.revision

    @property
    def modality(self) -> str:
        """``text``, ``image``, ``audio``, ``image+text``, or ``tensor`` for a module we know nothing about."""
        return self.info.modality

    @property
    def library(self) -> str:
        """``transformers``, ``timm`` or ``torch``."""
        return self.info.library

    @property
    def source(self) -> str | None:
        """What to pass to :func:`load_model` to get it again; None for a module object."""
        return self.info.source

    def forward(self, batch: Mapping[str, Any]) -> Any:
        """Run the model on one batch of inputs, which is moved to where the model is."""
        moved = {name: moved_to(self.model, value) for name, value in batch.items()}
        if self.library == "timm":
            return self.model(*moved.values())
        return self.model(**moved)


class HoldsModel(Protocol):
    """What has its model in it: pipelines of transformers and diffusers."""

    @property
    def model(self) -> object: ...


#: What :func:`load_model` takes; SentenceTransformers, PeftModels and compiled modules are modules.
Source = str | Path | nn.Module | LoadedModel | HoldsModel | tuple[nn.Module | HoldsModel, Processor | None]


@dataclass(frozen=True)
class _Request:
    """Everything the user asked for: what to load, from where and how."""

    source: str
    revision: str | None
    token: str | bool | None
    cache_dir: str | None
    local_files_only: bool
    trust_remote_code: bool
    allow_pickle: bool
    gguf_file: str | None
    task: str | None
    placement: Placement

    def __post_init__(self) -> None:
        if self.task is not None and self.task not in TASKS:
            raise InvalidInput(f"task is {self.task!r}; choose from {', '.join(TASKS)}.")
        named = PurePath(self.gguf_file or "")
        if named.is_absolute() or ".." in named.parts:
            raise InvalidInput(f"gguf_file is {self.gguf_file!r}; give the name of a file in the model's folder.")

    @property
    def hub_options(self) -> HubOptions:
        options = HubOptions(local_files_only=self.local_files_only)
        if self.revision is not None:
            options["revision"] = self.revision
        if self.token is not None:
            options["token"] = self.token
        if self.cache_dir is not None:
            options["cache_dir"] = self.cache_dir
        return options

    @property
    def file_options(self) -> dict[str, str]:
        """What a record of this model may say about how it was loaded."""
        return {name: value for name in OPTIONS_FROM_FILES if (value := getattr(self, name)) is not None}


def load_model(
    spec: Source,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | None = None,
    local_files_only: bool = False,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    gguf_file: str | None = None,
    task: str | None = None,
    device: str | None = None,
    device_map: DeviceMap | None = None,
    dtype: str | None = None,
    offload_folder: str | Path | None = None,
    tokenizer: Processor | None = None,
    processor: Processor | None = None,
) -> LoadedModel:
    """Load a model for inference; nothing is executed and nothing is unpickled unless you say so.

    Args:
        spec: A Hub id, a local folder, a timm name (``timm/…``, ``hf-hub:…`` or bare), a module, (module,
            tokenizer), a pipeline, a SentenceTransformer, a PeftModel or a compiled module. Pruned checkpoints of
            ours load like any other.
        revision: Branch, tag or commit on the Hub.
        token: Hub token; None uses the one you are logged in with.
        cache_dir: Where downloads are kept.
        local_files_only: Never contact the Hub (``HF_HUB_OFFLINE=1`` does the same).
        trust_remote_code: Run code that comes with the checkpoint.
        allow_pickle: Also load ``.bin`` weights, which are pickles.
        gguf_file: Name of the GGUF file, if the folder has several.
        task: Which head to load instead of the checkpoint's own: see ``TASKS``.
        device: Where to put the whole model, e.g. ``cuda``, ``mps``, ``cuda:1``.
        device_map: How accelerate spreads a transformers model over devices, memory and disk: ``auto``, or a mapping.
        dtype: ``float32``, ``bfloat16`` or ``float16``; None is the checkpoint's own.
        offload_folder: Where accelerate puts what fits into no memory.
        tokenizer: The tokenizer to read text with, instead of the one that comes with the model, if any does.
        processor: The same for images, sounds and pairs: an image processor, a feature extractor, a processor.

    >>> import torch, oattn_hub.attention
    >>> loaded = oattn_hub.attention.load_model(torch.nn.TransformerEncoderLayer(16, nhead=2))
    >>> loaded.library, loaded.model.training
    ('torch', False)
    """
    given = _given_processor(tokenizer, processor)
    if not isinstance(spec, str | Path):
        held = _hold(spec)
        return held if given is None else replace(held, processor=given)
    request = _Request(
        str(spec), revision, default_token(token), cache_dir, local_files_only, trust_remote_code, allow_pickle,
        gguf_file, task, Placement(device, device_map, dtype, offload_folder),
    )  # fmt: skip
    loaded = _load_explained(request)
    request.placement.place(loaded.model, loaded.library)
    align_weights(loaded.model)
    processor = loaded.processor if given is None else given
    return replace(loaded, processor=processor, hub_options=request.hub_options)


def _hold(spec: nn.Module | LoadedModel | HoldsModel | tuple[nn.Module | HoldsModel, Processor | None]) -> LoadedModel:
    """What was made in Python and not named; it stays as it is."""
    loaded = spec if isinstance(spec, LoadedModel) else _wrap(*unwrap(spec))
    return replace(loaded, sentence_encoder=spec) if is_sentence_encoder(spec) else loaded


def _load_explained(request: _Request) -> LoadedModel:
    """Load it, or say in one sentence why it cannot be loaded."""
    try:
        with nullcontext() if request.trust_remote_code else tensors_only():
            return _load(request)
    except OattnError:
        raise
    except ImportError as error:
        raise MissingDependency(f"Loading {request.source} needs a package that is not installed: {error}") from error
    except Exception as error:  # the Hub libraries raise a dozen unrelated classes for "it cannot be loaded"
        raise LoadError(_explain(request, error)) from error


def _given_processor(tokenizer: Processor | None, processor: Processor | None) -> Processor | None:
    """What the caller gave to read inputs with; None is nothing."""
    if tokenizer is not None and processor is not None:
        raise InvalidInput("Both tokenizer and processor were given; a processor has its tokenizer in it. Give one.")
    given = tokenizer if processor is None else processor
    if given is not None and not callable(given):
        raise InvalidInput(
            f"{type(given).__name__} cannot read inputs. Give a tokenizer or processor object of transformers, such as "
            "AutoTokenizer.from_pretrained(…)."
        )
    return given


def load_again(info: ModelInfo, **permissions: Unpack[LoadAgain]) -> LoadedModel:
    """Load the model that a report or a plan names.

    A file says which model it is and never what may be done to load it: that is what only the caller may grant. Nor
    does it say where the model is put, since the next machine is another one.

    Args:
        info: The model's identity, with a ``source``.
        permissions: Those of :func:`load_model` named in ``LoadAgain``.
    """
    known = LoadAgain.__annotations__
    if unknown := sorted(set(permissions) - set(known)):
        raise InvalidInput(f"Unknown options {unknown}; for loading the model there are {', '.join(known)}.")
    return load_model(str(info.source), **info.loading_options, **permissions)


def _load(request: _Request) -> LoadedModel:
    folder = Path(request.source)
    if folder.exists():
        return _load_folder(folder, request)
    if request.source.startswith(("hf-hub:", "hf_hub:")):
        return _load_timm_repo(request, request.source.partition(":")[2])
    if _is_timm_name(request.source):
        return _load_timm_name(request)
    if _looks_like_path(request.source):
        raise LoadError(f"{request.source} does not exist. Give a folder, a Hub id (owner/name) or a timm name.")
    return _load_repo(request)


def _load_repo(request: _Request) -> LoadedModel:
    """A repo on the Hub, at the commit its branch points to now: one revision for all files, and for the record."""
    from huggingface_hub import hf_hub_download

    first = hf_hub_download(request.source, request.gguf_file or "config.json", **request.hub_options)
    pinned = replace(request, revision=Path(first).parent.name)  # the cache keeps files in snapshots/COMMIT
    config = read_json(Path(first)) if request.gguf_file is None else {}
    if PRUNING_KEY in config:
        return _load_pruned_repo(pinned)
    if _is_timm_config(config):
        return _load_timm_repo(pinned, request.source)
    screen_repo(request.source, config, request.trust_remote_code, request.allow_pickle, **pinned.hub_options)
    return _load_transformers(pinned)


def _load_pruned_repo(request: _Request) -> LoadedModel:
    """A pruned checkpoint on the Hub: its data files only, since nothing that comes with it is run."""
    from huggingface_hub import snapshot_download

    folder = snapshot_download(request.source, allow_patterns=_PRUNED_FILES, **request.hub_options)
    loaded = _load_pruned(Path(folder), request.placement)
    info = replace(loaded.info, id=request.source, revision=request.revision, source=request.source)
    return replace(loaded, info=info)


def _load_folder(folder: Path, request: _Request) -> LoadedModel:
    request = replace(request, gguf_file=check_model_folder(folder, request.gguf_file))
    if not (folder / "config.json").is_file():
        screen_folder(folder, {})  # an adapter without its model is explained there
    config = read_json(folder / "config.json") if request.gguf_file is None else {}
    if PRUNING_KEY in config:
        return _load_pruned(folder, request.placement)
    if _is_timm_config(config):
        model = load_timm_folder(folder, request.allow_pickle)
        return _describe(model, None, public_name(str(folder)), content_fingerprint(folder), str(folder), request)
    screen_folder(folder, config, request.trust_remote_code, request.allow_pickle)
    return _with_origin(_load_transformers(request), folder)


def _load_pruned(folder: Path, placement: Placement) -> LoadedModel:
    from oattn_hub.pruning import load_pruned

    if not any(folder.glob("*.safetensors")):
        raise LoadError(f"{folder} is a pruned checkpoint without safetensors. Save or download it again.")
    with _quiet():
        model = load_pruned(folder, **placement.transformers_options)
    library = library_of(model)
    processor = None
    if library == "transformers":
        # the config at hand: the folder's own names a model type that transformers does not know, and warns of
        options = {"trust_remote_code": False, "config": config_of(model)}
        processor = processor_for(modality_of(model, library), str(folder), options)
    found = _describe(model, processor, public_name(str(folder)), content_fingerprint(folder), str(folder))
    return _with_origin(found, folder)


def _with_origin(loaded: LoadedModel, folder: Path) -> LoadedModel:
    """With what the folder's manifest says of the model it was pruned from; a plain or retrained one has none."""
    from oattn_hub.pruning.manifest import manifest_of

    if not (folder / MANIFEST).is_file():
        return loaded
    plan = manifest_of(folder).plan
    return replace(loaded, info=replace(loaded.info, base_model=plan.model.id or None, removed=tuple(plan.heads)))


def _load_transformers(request: _Request) -> LoadedModel:
    from transformers import AutoModel

    permissions = {**request.hub_options, "trust_remote_code": request.trust_remote_code}
    if request.gguf_file is not None:
        permissions["gguf_file"] = request.gguf_file
    options: dict[str, Any] = {**permissions, **request.placement.transformers_options}
    options["use_safetensors"] = None if request.allow_pickle or request.gguf_file else True
    with _quiet():
        model, found = _model_class(request).from_pretrained(request.source, output_loading_info=True, **options)
        if request.task is None and request.gguf_file is None and _is_headless(model, found["missing_keys"]):
            model = AutoModel.from_pretrained(request.source, **options)
    quantizer = getattr(model, "hf_quantizer", None)
    if request.gguf_file is not None and quantizer is not None:
        # the weights are plain floats now; left marked as quantised, the model could not be saved
        quantizer.remove_quantization_config(model)
    folder = Path(request.source)
    revision = content_fingerprint(folder) if folder.is_dir() else request.revision
    processor = processor_for(modality_of(model, "transformers"), request.source, permissions)
    return _describe(model, processor, public_name(request.source), revision, request.source, request)


def _model_class(request: _Request) -> Any:
    """The class that made the checkpoint, so that no weight is dropped and none is made up."""
    import transformers

    register_models()
    if request.task is not None:
        return getattr(transformers, TASKS[request.task])
    if request.gguf_file is not None:  # GGUF files hold decoders, and reading one's config takes as long as loading it
        return transformers.AutoModelForCausalLM
    options = {**request.hub_options, "trust_remote_code": request.trust_remote_code}
    config = transformers.AutoConfig.from_pretrained(request.source, **options)
    named = (config.architectures or [""])[0]
    return find_model_class(named, config.model_type) or transformers.AutoModel


def _is_headless(model: Any, missing: Collection[str]) -> bool:
    """Whether a matrix behind the base model came with no weights, so that it would say something at random.

    The configs of sentence encoders often name the class that they were trained from, with its head for words, which
    was not saved with them. What a head shares with the base model (tied words) is not missing.
    """
    weights = dict(model.named_parameters())
    known = {id(weight) for weight in model.base_model.parameters()}
    return any(name in weights and weights[name].dim() > 1 and id(weights[name]) not in known for name in missing)


def _load_timm_name(request: _Request) -> LoadedModel:
    """One of timm's own models, from the repo that timm names for it."""
    import timm

    known = timm.get_pretrained_cfg(request.source)
    if known is None or not known.hf_hub_id or known.hf_hub_filename:
        raise LoadError(
            f"timm has no weights for {request.source} on the Hub that are not a pickle. Build it with "
            "timm.create_model and pass the module."
        )
    return _load_timm_repo(request, known.hf_hub_id)


def _load_timm_repo(request: _Request, name: str) -> LoadedModel:
    """A timm model on the Hub: its config and its weights are fetched, and nothing of them is run."""
    from huggingface_hub import snapshot_download

    repo_id, _, tag = name.partition("@")
    options = request.hub_options
    if tag:
        options["revision"] = tag
    wanted = ["config.json", "*.safetensors", *(PICKLED_WEIGHTS if request.allow_pickle else ())]
    folder = Path(snapshot_download(repo_id, allow_patterns=wanted, **options))
    model = load_timm_folder(folder, request.allow_pickle)
    return _describe(model, None, request.source, folder.name, request.source, request)


def _wrap(module: nn.Module, processor: Any = None) -> LoadedModel:
    config = getattr(module, "config", None)
    model_id = getattr(config, "_name_or_path", None) or type(module).__qualname__
    return _describe(module, processor, model_id, weights_fingerprint(module), None)


def _describe(
    model: nn.Module,
    processor: Any,
    model_id: str,
    revision: str | None,
    source: str | None,
    request: _Request | None = None,
) -> LoadedModel:
    library = library_of(model)
    is_folder = source is not None and Path(source).is_dir()
    hub_options = request.hub_options if request is not None and not is_folder else {}
    info = ModelInfo(
        id=model_id,
        revision=revision,
        # a folder's whole path, so that the model is found again from anywhere
        source=str(Path(str(source)).resolve()) if is_folder else source,
        library=library,
        modality=modality_of(model, library),
        architecture=type(model).__name__,
        n_parameters=sum(parameter.numel() for parameter in model.parameters()),
        license=license_of(source, **hub_options),
        options=request.file_options if request is not None else {},
    )
    return LoadedModel(model.eval(), processor, info)


def _is_timm_config(config: Mapping[str, object]) -> bool:
    return "architecture" in config and "model_type" not in config


def _is_timm_name(source: str) -> bool:
    if "/" in source or Path(source).exists():
        return False
    import timm

    return bool(timm.is_model(source.split(".")[0]))


def _looks_like_path(source: str) -> bool:
    return source.startswith((".", "/", "~")) or source.count("/") > 1


def _explain(request: _Request, error: Exception) -> str:
    reason = " ".join(str(error).split())
    source = request.source
    if _NO_SAFETENSORS.search(reason) and (missing := missing_weights(source, request.allow_pickle)):
        return missing
    if "trust_remote_code" in reason:
        return f"{source} needs code of its own. Read it, then pass trust_remote_code=True (--trust-remote-code)."
    return (
        f"{source} cannot be loaded: {_whole_words(reason)} Give a Hub id (owner/name), a folder made by "
        "save_pretrained, or a timm name; offline, it must be in the cache."
    )


def _whole_words(text: str, most: int = 300) -> str:
    """A long text cut after a word, and a sentence either way.

    >>> _whole_words("one two three", 9), _whole_words("no file")
    ('one two …', 'no file.')
    """
    if len(text) <= most:
        return text if text.endswith((".", "!", "?")) else f"{text}."
    return text[: most + 1].rsplit(" ", 1)[0] + " …"


@contextmanager
def _quiet() -> Iterator[None]:
    """No bar while weights load: the caller shows progress, if anyone watches."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
