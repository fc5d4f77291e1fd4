"""How the local Hub says no."""

from __future__ import annotations


class Fault(Exception):
    """A request that is refused: the HTTP status, the Hub's error code for it if there is one, and why."""

    def __init__(self, status: int, message: str, code: str | None = None, body: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.body = {"error": message, **(body or {})}


def repo_not_found(anonymous: bool) -> Fault:
    """The one answer for a repo that is missing and for one the caller may not know about."""
    return Fault(401 if anonymous else 404, "Repository not found", "RepoNotFound")
