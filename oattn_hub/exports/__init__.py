"""Models in the formats that other engines read: an ONNX folder, and GGUF for llama.cpp."""

from oattn_hub.exports.gguf_files import export_gguf
from oattn_hub.exports.onnx_folders import export_onnx

__all__ = ["export_gguf", "export_onnx"]
