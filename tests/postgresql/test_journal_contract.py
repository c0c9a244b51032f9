"""The contract of ``JournalPort`` on PostgreSQL: the same tests, over this folder's ``store``."""

from tests.contract.test_journal_contract import *  # noqa: F403
