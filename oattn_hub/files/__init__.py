"""Files written whole or not at all, read only when they are sound, and held by one process at a time.

The store, the report, plans and checkpoints all go through here, so that "a run that dies never leaves a half-written
file that opens" and "a changed file never passes for the one that was written" are each kept in one place.
"""

from oattn_hub.files.atomic import (
    atomic_path,
    remove_orphans,
    storage_error,
    storage_errors,
    write_text,
)
from oattn_hub.files.documents import (
    parse_json,
    read_bytes,
    read_json,
    read_sealed,
    sealed,
    unsealed,
    write_json,
    write_sealed,
)
from oattn_hub.files.fingerprints import fingerprint, joint_fingerprint, sha256_file
from oattn_hub.files.locks import folder_lock
from oattn_hub.files.names import exists_here, is_folder, safe_name
from oattn_hub.files.sizes import parse_size
from oattn_hub.files.tensors import TensorEntry, TensorHeader, read_header, read_tensors, write_tensors

__all__ = [
    "TensorEntry",
    "TensorHeader",
    "atomic_path",
    "exists_here",
    "fingerprint",
    "joint_fingerprint",
    "parse_size",
    "folder_lock",
    "is_folder",
    "parse_json",
    "read_bytes",
    "read_header",
    "read_json",
    "read_sealed",
    "read_tensors",
    "remove_orphans",
    "safe_name",
    "sealed",
    "sha256_file",
    "storage_error",
    "storage_errors",
    "unsealed",
    "write_json",
    "write_sealed",
    "write_tensors",
    "write_text",
]
