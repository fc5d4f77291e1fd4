"""Before a release is built: the repository that builds it becomes part of the package's metadata.

The files name no owner, because this project may live anywhere. GitHub says where it does (GITHUB_REPOSITORY) and
which tag is built (GITHUB_REF_NAME): pyproject.toml gets its URLs, and the README, which PyPI shows far from its
folder, absolute links.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

IMAGES = re.compile(r"(!\[[^\]]*\]\()(?!https?:)([^)\s]+)")
LINKS = re.compile(r"(?<!!)(\[[^\]]*\]\()(?!https?:|#)([^)\s]+)")


def name_repository(folder: Path, repository: str, tag: str) -> None:
    """Write the URLs of ``repository`` at ``tag`` into the files of ``folder``."""
    home, owner, name = f"https://github.com/{repository}", *repository.split("/")
    urls = {
        "Homepage": home,
        "Documentation": f"https://{owner.lower()}.github.io/{name}/",
        "Issues": f"{home}/issues",
        "Changelog": f"{home}/blob/{tag}/CHANGELOG.md",
        "Security": f"{home}/blob/{tag}/SECURITY.md",
    }
    project = folder / "pyproject.toml"
    lines = "".join(f'{label} = "{url}"\n' for label, url in urls.items())
    project.write_text(project.read_text().replace("[project.urls]\n", f"[project.urls]\n{lines}"))
    readme = folder / "README.md"
    text = IMAGES.sub(rf"\1https://raw.githubusercontent.com/{repository}/{tag}/\2", readme.read_text())
    readme.write_text(LINKS.sub(rf"\1{home}/blob/{tag}/\2", text))


if __name__ == "__main__":
    name_repository(Path(), os.environ["GITHUB_REPOSITORY"], os.environ["GITHUB_REF_NAME"])
