"""Who may do what, as it is decided while the gateway runs: pairing, approved rooms, roles, blocks and links.

All of it is facts in the log. `roster` is the picture of what holds of them; `greeting` shows strangers their codes;
`pairing`, `opening`, `linking` and `naming` decide what becomes of codes and of an admin's word, and hand the facts
over; `deskless` does the same for the command line. Pure: `codes`, `tries`, `groups`, `rights`, `words`.
"""
