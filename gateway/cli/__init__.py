"""Command line `reverie`: run, the log, and commands to a running gateway.

`__main__` is what is installed: it imports `main`, which builds the argument parser and has `run`
and `check-config`; `operate` has dashboard and `store copy`, `log` reads the log
for people and programs. Plugins bring further commands (`Plugin.subcommands`): console, setup,
doctor, backup and restore. All other words are commands of the table (`gateway.commands`): `ctl`
has them carried out by the running gateway, or on the store of a stopped one; `client` does the
former before anything else is imported. What commands share:
`gateway.command_line`.

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
