"""`reverie console`: a terminal UI with four panes for a running gateway.

`client` is the HTTP client of the gateway's API and its event stream. `model` turns events into
text for the panes, and parses the input line; `safe_text` makes foreign text safe for a terminal;
both are pure. `app` is the Textual application.

Rules: nothing outside imports `app` or `model` before the command runs, for Textual is an extra.
Foreign text goes to the screen as `rich.text.Text` made of safe lines, never as markup.
"""
