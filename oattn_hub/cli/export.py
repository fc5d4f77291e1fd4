"""``oattn export PRUNED --onnx DIR | --gguf FILE``: the model for other engines."""

from __future__ import annotations

import argparse

from oattn_hub.cli import checks
from oattn_hub.cli.terminal import console
from oattn_hub.errors import InvalidInput

HELP = "write a pruned model for other engines: an ONNX folder (optimum, transformers.js) or GGUF (llama.cpp)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which model, which format."""
    parser.add_argument("model", help="folder of a pruned checkpoint, or any model")
    parser.add_argument(
        "--onnx", type=checks.path, metavar="DIR", help="write an ONNX folder: onnx/model.onnx, config, tokenizer"
    )
    parser.add_argument(
        "--gguf", type=checks.path, metavar="FILE", help="write a GGUF file; the plan must leave even groups"
    )
    parser.add_argument(
        "--like", type=checks.path, metavar="FILE", help="a GGUF file of the base model, to copy its tokenizer"
    )
    formats = ("float16", "float32")
    parser.add_argument("--dtype", choices=formats, default="float16", help="of the matrices in a GGUF file (float16)")


def check(args: argparse.Namespace) -> None:
    """Refuse what cannot work."""
    checks.model(args.model)
    if args.onnx is None and args.gguf is None:
        raise InvalidInput("No format was named. Give --onnx DIR or --gguf FILE.")
    checks.output_folder(args.onnx, ("onnx",), "an ONNX folder", "--onnx")
    checks.output_file(args.gguf, "--gguf")
    checks.input_file(args.like, "--like")


def run(args: argparse.Namespace) -> int:
    """Write, and say where."""
    from oattn_hub.exports import export_gguf, export_onnx

    if args.onnx is not None:
        export_onnx(args.model, args.onnx)
        words = f"{args.onnx} holds onnx/model.onnx, run in onnxruntime and compared with the model"
        console().print(words, markup=False, soft_wrap=True)
    if args.gguf is not None:
        export_gguf(args.model, args.gguf, like=args.like, dtype=args.dtype)
        console().print(f"{args.gguf} is for llama.cpp; it was not run here", markup=False, soft_wrap=True)
    return 0
