"""Many models: each is analysed by a worker of an existing engine, and files are the only state.

A sweep's folder holds one folder per model with its report and ``status.json``; whoever starts the same sweep again,
after a crash, on another machine or beside one that still runs, goes on with what is not done.
"""

from oattn_hub.lazy import lazy_exports

_EXPORTS = {
    "Leaderboard": "oattn_hub.sweep.leaderboard",
    "ModelJob": "oattn_hub.sweep.listing",
    "Status": "oattn_hub.sweep.state",
    "SweepResult": "oattn_hub.sweep.rounds",
    "read_models": "oattn_hub.sweep.listing",
    "run_sweep": "oattn_hub.sweep.rounds",
}

__all__ = [*_EXPORTS]

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
