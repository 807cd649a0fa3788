"""What a user has to be allowed depends on what the streams take to be read."""

from __future__ import annotations

from jsbackup.engine.check.doctor import grants_for
from jsbackup.repository.checks.doctor import Purpose


def test_buckets_read_by_snapshots_v2_take_a_consumer_that_a_plain_backup_can_do_without() -> None:
    plain = {one.grant for one in grants_for("$JS.API", Purpose.BACKUP)}
    more = {one.grant: one for one in grants_for("$JS.API", Purpose.BACKUP, reads_on=True)}
    assert more.keys() - plain == {"$JS.API.CONSUMER.CREATE.>", "$JS.API.CONSUMER.DELETE.*.*", "$JS.FC.>"}
    assert all(more[grant].spare for grant in more.keys() - plain)
