"""`python -m tinychat`: the same as `tinychat`."""

from __future__ import annotations

from tinychat.cli import main

main()
