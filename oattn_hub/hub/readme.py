"""A card in a README that belongs to a person as well.

Our text stands between two marks. When a README is already there, only what is between the marks is replaced, and of
the metadata only what we set; a README without marks keeps all its text, and ours is added below it.
"""

from __future__ import annotations

from collections.abc import Mapping

import yaml

from oattn_hub.errors import FormatError
from oattn_hub.files.front_matter import FRONT_MATTER, listed, parse_front_matter
from oattn_hub.letters import TURNING

BEGIN = "<!-- oattn_hub: written by a program from here on; it is replaced at the next publish -->"
END = "<!-- oattn_hub: end -->"


def build_readme(metadata: Mapping[str, object], text: str) -> str:
    """A README of our own: front matter, and the text between the marks.

    >>> print(build_readme({"license": "mit"}, "# Heads"))  # doctest: +ELLIPSIS
    ---
    license: mit
    ---
    <BLANKLINE>
    <!-- oattn_hub: written ...
    # Heads
    <!-- oattn_hub: end -->
    <BLANKLINE>
    """
    return f"{TURNING.sub('', _front_matter(metadata))}\n{BEGIN}\n{text.strip()}\n{END}\n"


def merge_readme(present: str, ours: str) -> str:
    """The present README with our section and our metadata brought up to date."""
    try:
        theirs, new = parse_front_matter(present), parse_front_matter(ours)
    except ValueError as error:
        raise FormatError(
            f"The README.md in the repo cannot be updated: {error}. Mend it there, then publish again."
        ) from error
    tags = list(dict.fromkeys([*listed(theirs.get("tags")), *listed(new.get("tags"))]))
    metadata = {**theirs, **new, **({"tags": tags} if tags else {})}
    section = _section(ours)
    match = FRONT_MATTER.match(present)
    body = present[match.end() :] if match else present
    # A front matter that says the same keeps its form, comments and all.
    front = match[0] + "\n" if match and metadata == theirs else _front_matter(metadata)
    return f"{front}\n{_with_section(body, section).lstrip()}"


def _with_section(body: str, section: str) -> str:
    start, end = body.find(BEGIN), body.find(END)
    if 0 <= start < end:
        return body[:start] + section + body[end + len(END) :]
    return f"{body.rstrip()}\n\n{section}\n"


def _section(readme: str) -> str:
    match = FRONT_MATTER.match(readme)
    body = readme[match.end() :] if match else readme  # a name in the metadata may contain the marks
    return body[body.index(BEGIN) : body.index(END) + len(END)]


def _front_matter(metadata: Mapping[str, object]) -> str:
    return f"---\n{yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True, width=1000).strip()}\n---\n"
