"""Settings: the configuration's models, its files, its checks, and reload while the gateway runs.

  models.py    `Settings` and its sections, except tools.py: `tools`; each default stands in one
               place
  source.py    one YAML file: values with their lines, `${...}` resolved, problems collected
  loader.py    a directory of files: merged, validated, with messages for people; `ConfigFiles`
               notices changes
  validation.py  checks across sections, on values as written; warnings about unwise settings
  check_registry.py  `@check`, and the checks for `reverie doctor`: files_check.py, model_check.py,
               settings_check.py
  secrets.py   secret values, for redaction; the price table
  reload.py    `LiveSettings`: the settings in force, reload in two phases, and the watcher of the
               files

A docstring under a field of a section, or the comment beside it in config/reverie.example.yaml, is
the key's text in the reference that `make docs` writes. A key that cannot change while the gateway
runs belongs to `reload.RESTART_KEYS`. No message and no log line quotes a value: it may be a
secret.
"""
