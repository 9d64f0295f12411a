"""Backups: `create` writes them, `restore` puts them in place."""

from typing import ClassVar

from gateway.plugin import Plugin


class Backup(Plugin):
    """Copies of all that cannot be made again, and the way back."""

    name = "backup"
    summary = "copies everything into one file, and restores it, by reverie backup and restore"
    subcommands: ClassVar = {
        "backup": (
            "copy the store and the agents' files into one archive, also while the gateway runs",
            "gateway.plugins.backup.create:add_arguments",
        ),
        "restore": (
            "restore a backup into empty directories",
            "gateway.plugins.backup.restore:add_arguments",
        ),
    }
