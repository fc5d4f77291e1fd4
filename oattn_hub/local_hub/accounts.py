"""Who may do what on the local Hub.

Tokens are made here and mean nothing anywhere else. They start with ``LOCAL_TOKEN_PREFIX``, so that
``oattn_hub`` can distinguish them from a real Hugging Face token and never sends one of those to a local Hub unasked.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

from oattn_hub.files import read_json, write_json
from oattn_hub.tokens import LOCAL_TOKEN_PREFIX


@dataclass(frozen=True)
class Account:
    """A user of the local Hub."""

    name: str
    token: str
    orgs: tuple[str, ...] = ()
    role: str = "write"

    def owns(self, namespace: str) -> bool:
        """Whether repos under ``namespace`` are this user's own or his organisation's."""
        return namespace == self.name or namespace in self.orgs

    def may_write(self, namespace: str) -> bool:
        """Whether this user may change repos under ``namespace``."""
        return self.role == "write" and self.owns(namespace)


class Accounts:
    """The users, kept in ``accounts.json`` so that a token stays valid over restarts."""

    def __init__(self, root: Path) -> None:
        self._path = root / "accounts.json"
        saved = read_json(self._path) if self._path.exists() else []
        self._by_name = {entry["name"]: Account(**{**entry, "orgs": tuple(entry["orgs"])}) for entry in saved}

    def ensure(self, name: str, orgs: tuple[str, ...] = (), role: str = "write") -> Account:
        """The account of that name with at least these organisations, made now if there is none."""
        known = self._by_name.get(name)
        token = known.token if known else LOCAL_TOKEN_PREFIX + secrets.token_hex(16)
        all_orgs = tuple(sorted({*(known.orgs if known else ()), *orgs}))
        account = Account(name, token, all_orgs, role)
        if account != known:
            self._by_name[name] = account
            write_json(self._path, [vars(entry) for entry in self._by_name.values()])
            self._path.chmod(0o600)
        return account

    def by_token(self, token: str) -> Account | None:
        """Whose token this is."""
        matches = (a for a in self._by_name.values() if secrets.compare_digest(a.token.encode(), token.encode()))
        return next(matches, None)

    @property
    def org_names(self) -> set[str]:
        """All organisations that somebody belongs to."""
        return {org for account in self._by_name.values() for org in account.orgs}
