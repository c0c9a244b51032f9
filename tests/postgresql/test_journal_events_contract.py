"""The contract of ``JournalPort`` for events on PostgreSQL: the same tests, over this folder's ``store``."""

from tests.contract.test_journal_events_contract import *  # noqa: F403
