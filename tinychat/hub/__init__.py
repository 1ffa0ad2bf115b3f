"""Remote models become local files: from the Hub, from wheels of the package index, from this machine.

`fetch` and `located` (sources.py) are what the engine and the command line use; `installed` (cache.py) lists what is
here. Everything in this room touches files and sockets only, never torch, so it may run on a thread of its own.
"""

from __future__ import annotations

from tinychat.hub.cache import Installed, installed
from tinychat.hub.sources import fetch, located

__all__ = ["Installed", "fetch", "installed", "located"]
