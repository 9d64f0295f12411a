"""`reverie console`: a terminal with four panes on a running gateway. Nothing else imports Textual.

`text`, `pane`, `model`, `status`, `entry` decide and are pure; `api` talks HTTP; `starting`, `child`, `serve` find or
run a gateway; `app`, `view` and `prompt` are what Textual draws.
"""
