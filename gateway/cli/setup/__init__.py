"""`reverie setup`: asks what matters, looks whether it works, and writes the configuration.

`interview` is the whole conversation as a generator: it yields what is to be asked, told and looked at (`dialog`), and
is sent the answers, so it knows neither terminals nor networks. `terminal` and `unattended` answer it, `looking` looks
with the probes. What comes out (`answers`) becomes entries of the configuration (`entries`), a new file (`rendering`)
or changes of those that are there (`editing`), and is put in place as a whole (`placing`).
"""
