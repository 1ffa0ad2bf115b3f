"""tinychat: a terminal chat whose language-model engine is made of glass."""

__version__ = "0.1.0"
