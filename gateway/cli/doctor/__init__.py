"""`reverie doctor`: everything that can be reached is looked at, and for each finding the remedy is said.

`rules/` decide, pure: from what was seen to findings. `checks/` look, one area each, and only read: neither the store's
lock nor a place at a platform is taken, so that a running gateway is not disturbed. `examine` runs them side by side.
`report` is what people and programs are shown.

Looking at the world, area by area. Each check reads only, and its rules decide about what it saw.

From what was seen to findings, area by area. Pure.
"""
