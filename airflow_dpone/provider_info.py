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

_SSL_MODES = ["disable", "allow", "prefer", "require", "verify-ca", "verify-full"]
_CONNECTION_TYPES = [
    {
        "connection-type": "dponejournal",
        "hook-class-name": "airflow_dpone.hooks.journal.JournalHook",
        "hook-name": "dpone journal",
        "ui-field-behaviour": {
            "hidden-fields": [],
            "relabeling": {"host": "Host, or path of a SQLite file", "schema": "Database"},
            "placeholders": {
                "host": "db.example, or /var/lib/dpone/journal.db",
                "port": "5432",
                "login": "of a server only",
                "schema": "of a server only",
            },
        },
        "conn-fields": {
            "sslmode": {
                "label": "TLS (sslmode)",
                "description": "verify-full across a network; empty is libpq's own default",
                "schema": {"type": ["string", "null"], "enum": [*_SSL_MODES, None]},
            },
            "sslrootcert": {
                "label": "Certificate authority (sslrootcert)",
                "description": "Path of a file on each worker",
                "schema": {"type": ["string", "null"]},
            },
            "options": {
                "label": "Schema of the tables (options)",
                "description": "-csearch_path=NAME, or nothing",
                "schema": {"type": ["string", "null"]},
            },
        },
    },
    {
        "connection-type": "dponeembedded",
        "hook-class-name": "airflow_dpone.hooks.embedded.EmbeddedHook",
        "hook-name": "dpone embedded engine",
        "ui-field-behaviour": {
            "hidden-fields": ["schema", "port", "login", "password"],
            "relabeling": {"host": "Path"},
            "placeholders": {"host": "/data/shop, or /data/warehouse.duckdb"},
        },
        "conn-fields": {
            "engine": {
                "label": "Engine",
                "description": "chdb: a directory, as a source. duckdb: a file, as a target.",
                "schema": {"type": "string", "enum": ["chdb", "duckdb"]},
            },
        },
    },
]


_INTEGRATION = "dpone"


def _modules(part: str, *names: str) -> list[dict[str, Any]]:
    modules = [f"airflow_dpone.{part}.{name}" for name in names]
    return [{"integration-name": _INTEGRATION, "python-modules": modules}]


def get_provider_info() -> dict[str, Any]:
    """The provider's description, in the form that Airflow's providers manager validates.

    ``package-name`` must equal the distribution's name, or Airflow refuses the provider.
    """
    return {
        "package-name": "airflow-dpone",
        "name": "dpone",
        "description": "Delivers windows from ClickHouse to SQL Server, with proof.",
        "connection-types": _CONNECTION_TYPES,
        "extra-links": ["airflow_dpone.links.delivery.DeliveryLink"],
        "plugins": [{"name": "dpone", "plugin-class": "airflow_dpone.ui.plugin.DponePlugin"}],
        "cli": ["airflow_dpone.cli.airflow_group.get_cli_commands"],
        "config": {
            "dpone": {
                "description": "Defaults of deliveries: what a DAG says itself goes first.",
                "options": _OPTIONS,
            }
        },
        "integrations": [{"integration-name": _INTEGRATION, "tags": ["service"]}],
        "asset-uris": [{"schemes": ["dpone"], "handler": "airflow_dpone.operators.assets.checked_uri"}],
        "operators": _modules("operators", "one_task", "seven_tasks"),
        "sensors": _modules("sensors", "custody", "source", "windows"),
        "triggers": _modules("triggers", "custody", "source", "windows"),
    }
