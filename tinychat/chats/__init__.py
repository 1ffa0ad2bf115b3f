"""Conversations as plain data: the tree of turns, and the file that keeps them.

The UI thread owns the tree; the engine is only ever told a path, and a writer of its own keeps it on disk.
"""

from tinychat.chats.tree import Tree, TreeState
from tinychat.chats.turn import Turn

__all__ = ["Tree", "TreeState", "Turn"]
