"""What of a prompt to have cached, and for how long: decided by price. All files but `keeper` are pure.

`prices` says what tokens cost, `cadence` how soon a prefix is asked for again, `warmth` what is believed to be
cached; `lifetimes` is what pays, `marks` where it pays, and `plan` what that comes to for one request. `keepwarm`
says when it would pay to read a prefix only so that it stays cached.
"""
