"""The licence of a base model, which its reports and pruned checkpoints have to name."""

from __future__ import annotations

from pathlib import Path


def license_of(source: str | None) -> str | None:
    """What the card of a folder or of a Hub repo says; None where there is no card, or it does not say."""
    from huggingface_hub import ModelCard, hf_hub_download

    if source is None:
        return None
    card = Path(source) / "README.md"
    try:
        if not Path(source).is_dir() and source.count("/") == 1:
            card = Path(hf_hub_download(source, "README.md"))
        return ModelCard.load(card).data.license if card.is_file() else None
    except (OSError, ValueError):  # no card, no connection, or front matter that is not valid: not worth failing for
        return None
