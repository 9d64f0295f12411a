"""A database that is restored to a moment from its archive, as docs/cluster.md says: nothing is
said twice."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from reverie.testing.channels import story
from tests.gateway.system.crash.test_store_program import says
from tests.gateway.system.platforms.telegram_kit import town
from tests.servers.real_postgresql import PostgresServer, missing_part


@pytest.fixture
def archived() -> Iterator[PostgresServer]:
    """A server that keeps its write-ahead log."""
    if missing := missing_part():
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    with PostgresServer(is_archived=True) as server:
        yield server


@pytest.mark.system
@story
async def test_a_gateway_goes_on_after_the_moment_to_which_its_database_was_restored(
    tmp_path: Path, archived: PostgresServer
) -> None:
    async with town(tmp_path) as it:
        it.keep_in(archived.url("moment"))
        ann, ben = it.api.person("Ann"), it.api.person("Ben")
        await it.start()
        await it.answered(it.say(ann))
        archived.make_base_backup()
        kept = it.say(ben)
        await it.answered(kept)
        await it.calm()
        ((moment,),) = archived.execute("SELECT clock_timestamp()::text")
        lost = [it.say(ann), it.say(ben)]
        await it.answered(*lost)
        await it.calm()
        await it.end()
        archived.restore(moment)
        said = [entry.fact for entry in await it.entries()]
        assert kept in str(said)
        assert not any(token in str(said) for token in lost)
        await it.start()
        await says(it, "the end of the log is lost")
        later = [it.say(ann), it.say(ben)]
        await it.answered(*later)
        await it.end()
        assert all(it.heard(token) == 1 for token in (kept, *lost, *later))
        assert "Traceback" not in it.log
