"""Command line `reverie`: run, setup, doctor, console, backup, demo, and commands to a running
gateway.

`__main__` is what is installed: it imports `main`, which builds the argument parser and has `run`,
`check-config`, `health`, `channels` and `demo`; `operate` has setup, doctor, backup, restore,
console and dashboard, `log` reads the log for people and programs. All other words are commands of
the table (`gateway.commands`): `ctl` has them carried out by the running gateway, or on the store
of a stopped one. `options` has what they share. The work behind the larger commands is in `backup`,
`restore` and `demo`, and in the packages `setup`, `doctor` and `console`.

Rules:
- Exit codes are 0 done, 1 failed, 2 bad usage or nothing could be done; each file names the
  exceptions.
- Results go to stdout, reasons for failures to stderr. Foreign text is printed through
  `escape_unprintable`, and JSON as ASCII, so that both are safe on every terminal. Secrets are
  redacted in output for people.
- A command that changes state asks the running gateway through its control socket. Without a
  gateway it changes the store under the store's lock, through the same functions. Reading commands
  work beside a running gateway.
- Imports that take time are inside the handlers, so that `reverie --help` and the small commands
  start fast.
"""
