"""From what was seen to findings, area by area. Pure."""
