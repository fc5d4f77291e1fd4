"""The project's exceptions: one tree, each leaf also the builtin that callers expect.

::

    OattnError
    ├── InvalidInput (ValueError)          a bad argument: what, which value, what to do
    ├── MissingDependency (ImportError)    an optional package is not installed
    ├── NotFitted (ValueError)             results asked for before ``fit``
    ├── FormatError (ValueError)           a damaged, foreign or outdated file
    ├── LoadError (OSError)                a model, a data set or a file that cannot be loaded
    ├── StorageError (OSError)             a disk that is full or not writable
    │   └── FolderInUse                    a folder that another process is writing
    ├── AdapterError (LookupError)         no adapter, or two of one name
    ├── CaptureError (RuntimeError)        attention that ran and was not, or only partly, seen
    ├── SurgeryError (TypeError)           a head that cannot be cut out of this model
    └── HubError (OSError)                 the Hub refused or did not answer
        ├── HubAuthError                   no token, a wrong one, or one without the right
        ├── HubNotFound                    no such repo, revision or file
        ├── HubConflict                    somebody else changed the repo, or the name is taken
        └── HubUnavailable                 no connection, rate limit, or a failing server

Every message is one sentence that says what happened with the values, and one that says what to do.
"""

from __future__ import annotations


class OattnError(Exception):
    """Root of the project's exceptions."""


class InvalidInput(OattnError, ValueError):
    """An argument has a value that cannot be used."""


class MissingDependency(OattnError, ImportError):
    """An optional package is needed and not installed."""


class NotFitted(OattnError, ValueError):
    """Results were asked for before ``fit``."""


class FormatError(OattnError, ValueError):
    """A file is damaged, foreign, or of a schema this version does not read."""


class LoadError(OattnError, OSError):
    """A model, a data set or a file cannot be loaded."""


class StorageError(OattnError, OSError):
    """A result cannot be written."""


class FolderInUse(StorageError):
    """Another process is writing the folder."""


class AdapterError(OattnError, LookupError):
    """No adapter serves the model, or two claim one name."""


class CaptureError(OattnError, RuntimeError):
    """Attention ran and was not, or only partly, seen."""


class SurgeryError(OattnError, TypeError):
    """A head cannot be cut out of this model."""


class HubError(OattnError, OSError):
    """The Hub refused or did not answer."""


class HubAuthError(HubError):
    """No token, a wrong token, or a token without the right that is needed."""


class HubNotFound(HubError):
    """No such repo, revision or file on the Hub."""


class HubConflict(HubError):
    """Somebody else changed the repo, or its name is taken."""


class HubUnavailable(HubError):
    """No connection, a rate limit, or a failing server."""
