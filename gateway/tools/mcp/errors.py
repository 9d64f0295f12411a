"""Errors of calls without an answer.

McpCallError
+-- McpNotSent          certainly not carried out: connect anew, and call again
+-- McpConnectionLost   perhaps carried out: report that
+-- McpTimeout          perhaps carried out, and the server was told of the cancellation
"""


class McpCallError(Exception):
    """A call has no answer. The subclass says what to do."""


class McpNotSent(McpCallError):
    """The connection has ended, and the call was certainly not carried out."""


class McpConnectionLost(McpCallError):
    """The connection has ended, and the outcome of the call is unknown."""


class McpTimeout(McpCallError):
    """The call took longer than its timeout."""
