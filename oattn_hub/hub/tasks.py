"""What a model class is for, in the words of the Hub's pipeline tags."""

from __future__ import annotations

from typing import Any

# transformers' table of classes -> pipeline tag; first match wins.
_TABLES = {
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES": "fill-mask",
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES": "text-generation",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES": "automatic-speech-recognition",
    "MODEL_FOR_CTC_MAPPING_NAMES": "automatic-speech-recognition",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES": "image-text-to-text",
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES": "text-classification",
    "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES": "token-classification",
    "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES": "question-answering",
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES": "image-classification",
    "MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING_NAMES": "video-classification",
    "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES": "audio-classification",
    "MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES": "object-detection",
    "MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES": "image-segmentation",
    "MODEL_FOR_INSTANCE_SEGMENTATION_MAPPING_NAMES": "image-segmentation",
    "MODEL_FOR_UNIVERSAL_SEGMENTATION_MAPPING_NAMES": "image-segmentation",
    "MODEL_FOR_DEPTH_ESTIMATION_MAPPING_NAMES": "depth-estimation",
    "MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES": "zero-shot-image-classification",
    "MODEL_FOR_IMAGE_MAPPING_NAMES": "image-feature-extraction",
    "MODEL_MAPPING_NAMES": "feature-extraction",
}
# Writers of text from text: their classes say nothing, their families do.
_SEQ2SEQ = {"Marian": "translation", "M2M": "translation", "MBart": "translation", "NllbMoe": "translation"}
_SEQ2SEQ |= {"T5": "translation", "Pegasus": "summarization", "Bart": "summarization", "LED": "summarization"}


def task_of_class(name: str, library: str) -> str | None:
    """The pipeline tag of a class; None where its name does not show it.

    >>> task_of_class("WhisperForConditionalGeneration", "transformers"), task_of_class("ViTModel", "transformers")
    ('automatic-speech-recognition', 'image-feature-extraction')
    """
    if library == "timm":
        return "image-classification"
    if library != "transformers":
        return None
    from transformers.models.auto import modeling_auto

    for table, task in _TABLES.items():
        if name in _names(getattr(modeling_auto, table, {})):
            return task
    return next((task for family, task in _SEQ2SEQ.items() if name.startswith(family)), None)


def _names(table: Any) -> set[str]:
    entries = ([value] if isinstance(value, str) else value for value in table.values())
    return {name for names in entries for name in names}
