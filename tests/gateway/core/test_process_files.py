"""Files of several processes beside one store."""

import json
import os
import signal
import socket
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.core.process_files import (
    ProcessNameInUse,
    check_process_name,
    default_process_name,
    hold_process_files,
    list_process_paths,
    lock_file,
    process_name,
    process_path,
    socket_path,
)

NOW = datetime(2026, 7, 1, 12, tzinfo=UTC)
HOLDING = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from gateway.core.process_files import hold_process_files
with hold_process_files(Path(sys.argv[1]), "killed", datetime.now(UTC)) as path:
    print("held", flush=True)
    sys.stdin.read()
"""


def names(store: Path) -> set[str]:
    return {process_name(one, store) for one in list_process_paths(store)}


def test_a_gateway_of_one_process_has_its_files_beside_the_store(tmp_path: Path) -> None:
    store = tmp_path / "reverie.db"
    with hold_process_files(store, "", NOW) as path:
        assert path == store
        assert list(tmp_path.iterdir()) == []
    assert list_process_paths(store) == [store]


def test_processes_have_files_of_their_own_and_remove_them(tmp_path: Path) -> None:
    store = tmp_path / "new" / "reverie.db"
    with (
        hold_process_files(store, "edge-1", NOW) as edge,
        hold_process_files(store, "worker-1", NOW) as worker,
    ):
        assert edge.name == "reverie.db@edge-1"
        assert socket_path(edge) != socket_path(worker)
        for one in (edge, worker):
            socket_path(one).touch()
        assert list_process_paths(store) == [store, edge, worker]
        assert names(store) == {"edge-1", "worker-1", ""}
        with (
            pytest.raises(ProcessNameInUse, match="edge-1 runs with the store"),
            hold_process_files(store, "edge-1", NOW),
        ):
            pass
    assert list(store.parent.iterdir()) == []
    with hold_process_files(store, "edge-1", NOW):
        pass


def test_what_a_killed_process_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    store = tmp_path / "reverie.db"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(store)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with hold_process_files(store, "other", NOW):
            assert names(store) == {"", "other", "killed"}, "it hangs, perhaps"
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    with hold_process_files(store, "other", NOW):
        assert names(store) == {"", "other"}


def test_a_process_of_another_host_keeps_its_files(tmp_path: Path) -> None:
    """Its lock is not seen on some file systems."""
    store = tmp_path / "reverie.db"
    for host in ("elsewhere", socket.gethostname()):
        lock_file(process_path(store, f"of-{host}")).write_text(json.dumps({"host": host}))
    with hold_process_files(store, "here", NOW):
        assert names(store) == {"", "here", "of-elsewhere"}


@pytest.mark.parametrize("name", ["", "a/b", "..", "a@b", "-x", "x" * 64, "a b", "é"])
def test_a_name_that_no_file_can_have_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no name of a process"):
        check_process_name(name)


def test_the_default_name_is_a_name() -> None:
    assert check_process_name(default_process_name()).endswith(f":{os.getpid()}")
