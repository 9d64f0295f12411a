"""What it means to count tokens. Pure."""

from typing import Protocol

from agent.view import BYTES_PER_TOKEN


class TokenCounter(Protocol):
    """Counts the tokens of texts as some model's tokenizer would, or nearly."""

    def count(self, text: str) -> int:
        """Tokens of `text` as ordinary text, without the frame around a message; 0 for nothing.

        Any string, also one with lone surrogates. Remembers: a text that was counted lately costs a look-up. Does no
        IO and does not wait.
        """

    @property
    def is_exact(self) -> bool:
        """Whether whole requests are counted by the model's own counter, and always have been in this process."""


def count_heuristically(text: str) -> int:
    """As many tokens as there are 3.5 bytes of UTF-8, rounded up: more than English has, about right for code."""
    # a lone surrogate has no UTF-8; "surrogatepass" makes three bytes of it, as of the replacement character
    return int(-(-len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN))
