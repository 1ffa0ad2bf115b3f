"""Conversations as plain data: the tree of turns. The UI thread owns it; the engine is only ever told a path."""

from tinychat.chats.tree import Tree, TreeState
from tinychat.chats.turn import Turn

__all__ = ["Tree", "TreeState", "Turn"]
