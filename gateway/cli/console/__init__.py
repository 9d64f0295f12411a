"""`reverie console`: a terminal UI with four panes for a running gateway.

`launch` finds the gateway to attach to, or runs one as a child process (`serve` is that process). `client` is the HTTP
client of the gateway's API with its models, and the event stream with reconnects. `model` decides what the panes show:
it turns events into lines, keeps the state of turns and tools, and parses the input line; it is pure. `pane` has the
lines, wrapping and scrolling of one pane, and makes foreign text safe for a terminal; it is pure. `app` is the Textual
application with its widgets.

Rules: only `app` imports Textual, and nothing outside imports `app` before the command runs. All state of what is shown
is in `ConsoleModel` and its `Pane` objects; widgets only draw it. Text goes to the screen as `Segment` objects, never
as markup.
"""
