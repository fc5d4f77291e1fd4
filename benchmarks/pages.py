"""Pages of results: what a program found, and below a line what somebody wrote about it, which the next run keeps."""

from __future__ import annotations

from pathlib import Path


def write_page(place: Path, found: str, program: str) -> None:
    """Write what a program found on its page; the words below the line of an earlier page stay."""
    line = f"<!-- From here on written by hand: benchmarks/{program} keeps it. -->"
    old = place.read_text() if place.exists() else ""
    kept = old[old.index(line) :] if line in old else f"{line}\n"
    place.write_text(f"{found}\n{kept}")
