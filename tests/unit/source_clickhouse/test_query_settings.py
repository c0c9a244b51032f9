"""Which settings are sent, and what else is refused."""

from __future__ import annotations

from airflow_dpone.source_clickhouse import query_settings as qs


def problems(changed: dict[str, str], sent: dict[str, str], own: tuple[str, ...] = ()) -> list[str]:
    found = qs.setting_problems(list(changed.items()), sent, own)
    assert {p.code for p in found} <= {"dpone.source.setting"}
    return [f"{p.where}: {p.message}" for p in found]


def test_only_known_settings_are_sent() -> None:
    """[G4] A name that the server lacks would be an error; the feature is then missing as well."""
    assert "apply_patch_parts" not in qs.settings_to_send([])
    assert qs.settings_to_send(["apply_patch_parts", "other"])["apply_patch_parts"] == "1"
    assert qs.settings_to_send([]).items() >= {"limit": "0", "session_timezone": "UTC"}.items()


def test_blocks_fit_the_rows() -> None:
    """[F11]"""
    assert qs.block_rows(0) == qs.block_rows(10) == qs.MAX_BLOCK_ROWS
    assert qs.block_rows(16 * 1024) == 1024
    assert qs.block_rows(10**9) == qs.MIN_BLOCK_ROWS


def test_every_overflow_is_an_error() -> None:
    """[F2] `break` would be a normal end with fewer rows."""
    sent = qs.settings_to_send(qs.SENT_IF_KNOWN)
    modes = {name: value for name, value in sent.items() if "overflow_mode" in name}
    assert len(modes) >= 11
    assert set(modes.values()) == {"throw"}


def test_the_lists_do_not_contradict_each_other() -> None:
    sent = {*qs.ALWAYS_SENT, *qs.SENT_IF_KNOWN, *qs.ARROW_SENT}
    assert not sent & qs.HARMLESS
    assert not sent & qs.EMBEDDED_OWN
    assert not any("filter" in name or "overflow" in name or name.startswith("join") for name in qs.HARMLESS)


def test_what_was_sent_and_arrived_is_fine() -> None:
    assert problems({"limit": "0", "max_threads": "4", "own": "1"}, {"limit": "0"}, ("own",)) == []


def test_a_setting_that_does_not_take_its_value_is_refused() -> None:
    """A constraint of the profile, or readonly: the value stays."""
    assert "stays '3'" in problems({"limit": "3"}, {"limit": "0"})[0]
    assert "stays its default" in problems({}, {"limit": "0"})[0]


def test_anything_unknown_is_refused_by_name() -> None:
    """[F2]"""
    found = problems({"limit": "0", "transform_null_in": "1", "a_new_one": "x"}, {"limit": "0"})
    assert [text.split(":")[0] for text in found] == ["setting a_new_one", "setting transform_null_in"]
