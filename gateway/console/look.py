"""How the console looks: where its parts stand, and in which colours."""

from typing import Final

from textual.theme import Theme

THEME: Final = Theme(
    name="reverie",
    ansi=True,
    primary="ansi_cyan",
    secondary="ansi_magenta",
    warning="ansi_red",
    error="ansi_red",
    success="ansi_green",
    accent="ansi_cyan",
    foreground="ansi_default",
    background="ansi_default",
    surface="ansi_default",
    panel="ansi_default",
    boost="ansi_default",
    variables={
        "ansi-background": "ansi_default",
        "ansi-foreground": "ansi_default",
        "border": "ansi_cyan",
        "border-blurred": "ansi_default",
        "block-cursor-foreground": "ansi_default",
        "block-cursor-background": "ansi_default",
        "block-hover-background": "ansi_default",
        "input-cursor-background": "ansi_default",
        "input-cursor-foreground": "ansi_default",
        "input-cursor-text-style": "reverse",
        "input-selection-background": "ansi_default",
        "input-selection-foreground": "ansi_default",
        "screen-selection-background": "ansi_cyan",
        "screen-selection-foreground": "ansi_default",
        "footer-key-foreground": "ansi_cyan",
        "footer-description-foreground": "ansi_default",
        "footer-background": "ansi_default",
        "scrollbar": "ansi_cyan",
        "scrollbar-hover": "ansi_magenta",
        "scrollbar-active": "ansi_magenta",
        "scrollbar-background": "ansi_default",
        "scrollbar-background-hover": "ansi_default",
        "scrollbar-background-active": "ansi_default",
        "scrollbar-corner-color": "ansi_default",
    },
)
"""The terminal's own colours: readable wherever the terminal is."""

CSS: Final = """
Screen { layout: vertical; }
#board { height: 1fr; }
#body { height: 1fr; }
#left { width: 3fr; }
#right { width: 2fr; border-left: solid ansi_default; }
#alone-box { height: 2fr; }
#talk-box { height: 3fr; }
Title { height: 1; width: 1fr; }
PaneView { height: 1fr; overflow-y: scroll; overflow-x: hidden; scrollbar-size-vertical: 1; }
Rows { width: 1fr; }
#hint { height: 1; display: none; }
#entry { height: auto; max-height: 5; }
#mark { width: 2; height: 1; text-style: bold; }
Prompt { height: auto; max-height: 5; width: 1fr; padding: 0; scrollbar-size-vertical: 1; }
#status { height: 2; }
#keys { height: 1; }
HelpScreen { align: center middle; }
#help { width: 90%; max-width: 100; height: 90%; border: solid ansi_cyan; }
"""
