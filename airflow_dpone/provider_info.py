"""What Airflow learns about this package from its entry point, without importing anything else of it."""

from __future__ import annotations

from typing import Any

_OPTIONS = {
    "journal_conn_id": {
        "description": "The Airflow connection of the journal, wherever none is named.",
        "version_added": "0.1.0",
        "type": "string",
        "example": None,
        "default": "dpone_journal",
    },
    "spool_path": {
        "description": "Where sealed chunks are kept: an absolute path, or a URL such as s3://bucket/prefix. "
        "Empty: dpone/spool below AIRFLOW_HOME.",
        "version_added": "0.1.0",
        "type": "string",
        "example": "/var/lib/dpone/spool",
        "default": "",
    },
    "lease_ttl_sec": {
        "description": "How long a silent worker is believed before another one may take over: 2 to 600.",
        "version_added": "0.1.0",
        "type": "float",
        "example": None,
        "default": "60.0",
    },
    "host_id": {
        "description": "This machine's name for a journal in a SQLite file and for a local spool. Empty: "
        "/etc/machine-id, else the host name. A container whose files outlive it needs one that stays "
        "the same.",
        "version_added": "0.1.0",
        "type": "string",
        "example": "worker-1",
        "default": "",
    },
}


def get_provider_info() -> dict[str, Any]:
    """The provider's description, in the form that Airflow's providers manager validates.

    ``package-name`` must equal the distribution's name, or Airflow refuses the provider.
    """
    return {
        "package-name": "airflow-dpone",
        "name": "dpone",
        "description": "Delivers windows from ClickHouse to SQL Server, with proof.",
        "cli": ["airflow_dpone.cli.airflow_group.get_cli_commands"],
        "config": {
            "dpone": {
                "description": "Defaults of deliveries: what a DAG says itself goes first.",
                "options": _OPTIONS,
            }
        },
        "triggers": [
            {"integration-name": "dpone", "python-modules": ["airflow_dpone.triggers.custody"]},
        ],
    }
