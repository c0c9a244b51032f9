"""Every hour: the deliveries that own their target and are not finished. It fails when one needs a person.

A failed task is what Airflow's own notifications are for. Its log says what to do: mostly, clear the task
that is named.
Connection: the journal's, `dpone_journal`.
"""

import logging

from airflow.sdk import DAG, task

from airflow_dpone.hooks.journal import JournalHook

log = logging.getLogger(__name__)
PATIENCE_SEC = 6 * 3600
A_PERSON_LOOKS = ("UNKNOWN", "INCIDENT")

with DAG("recovery_report", schedule="@hourly", catchup=False):

    @task
    def unfinished_deliveries() -> int:
        """How many there are."""
        with JournalHook("dpone_journal").get_conn() as journal:
            found = journal.unfinished()
        for one in found:
            log.info("%(dag_id)s %(run_id)s %(task_id)s is %(state)s for %(age_sec).0f s: %(reason)s", one)
            log.info("next: %(next_action)s [delivery %(invocation_key)s]", one)
        waiting = [one for one in found if one["state"] in A_PERSON_LOOKS or one["age_sec"] > PATIENCE_SEC]
        if waiting:
            raise RuntimeError(f"{len(waiting)} deliveries need a person: see the lines above")
        return len(found)

    unfinished_deliveries()
