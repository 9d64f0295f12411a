"""What of a prompt to have cached, and for how long: decided by price. All files but `keeper` are pure.

`prices` says what tokens cost, `cadence` how soon a prefix is asked for again, `warmth` what is believed to be
cached, `lifetimes` what pays, and `plan` puts it together into the marks of one request.
"""
