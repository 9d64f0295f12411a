"""Why a call brought no answer. Pure.

Unanswered
+-- Unheard   it surely was not carried out: connect anew, and call again
+-- Lost      whether it was, nobody knows: tell so
+-- Slow      the same, and the server was told that nobody waits any more
"""


class McpCallError(Exception):
    """There is no answer to a call. The subclass says what to do."""


class McpNotSent(McpCallError):
    """The connection has ended, and the call surely was not carried out."""


class McpConnectionLost(McpCallError):
    """The connection has ended, and what became of the call is not known."""


class McpTimeout(McpCallError):
    """The time is over."""
