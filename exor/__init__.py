"""The EXor lab: what does tying a language model's input and output embeddings do to it?

Importing this package is cheap; torch is loaded only by the modules that compute with it.
"""

__version__ = "0.1.0"


class InputError(Exception):
    """Something the user gave cannot be used. One line that names the culprit and what would be accepted.

    Commands print it without a traceback and exit with status 2.
    """
