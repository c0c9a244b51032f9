"""Which settings are sent, and what else is refused."""

from __future__ import annotations

from airflow_dpone.source_clickhouse import query_settings as qs
from airflow_dpone.source_clickhouse.query_settings import Setting


def problems(
    changed: dict[str, str], sent: dict[str, str], own: tuple[str, ...] = (), profiles: str = ""
) -> list[str]:
    seen = {name: Setting(value, True) for name, value in changed.items()}
    found = qs.setting_problems(seen, sent, own, profiles)
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
    """A constraint of the profile, or readonly: the value stays. The profile is named."""
    assert "stays '3'" in problems({"limit": "3"}, {"limit": "0"})[0]
    assert "is not known to this server" in problems({}, {"limit": "0"})[0]
    assert "in the profile 'reports' of this user" in problems({}, {"limit": "0"}, (), "'reports'")[0]


def test_a_wanted_setting_may_be_at_its_default() -> None:
    """[F2] Under readonly = 1 nothing is sent, and what is right already is right."""
    assert qs.setting_problems({"limit": Setting("0", False)}, {"limit": "0"}, ()) == []
    assert qs.setting_problems({"join_use_nulls": Setting("1", False)}, {}, ()) == []


def test_anything_unknown_is_refused_by_name() -> None:
    """[F2]"""
    found = problems({"limit": "0", "transform_null_in": "1", "a_new_one": "x"}, {"limit": "0"})
    assert [text.split(":")[0] for text in found] == ["setting a_new_one", "setting transform_null_in"]


def test_settings_of_inserts_and_text_formats_are_harmless() -> None:
    """A user that also writes is no reason to refuse."""
    changed = {"async_insert": "1", "insert_quorum": "2", "input_format_null_as_default": "0"}
    assert problems(changed, {}) == []


# ---- what a user may set [F2, B71] ------------------------------------------------------------------------


def server(**changes: Setting) -> dict[str, Setting]:
    """A server that has every setting of the closed list, each at the value that is wanted."""
    wanted = qs.settings_to_send(qs.SENT_IF_KNOWN)
    return {**{name: Setting(value, False) for name, value in wanted.items()}, **changes}


def test_a_readonly_user_sends_nothing_that_would_change() -> None:
    """What differs is left out, and is a problem unless it is a matter of comfort."""
    found = server(readonly=Setting("1", True), limit=Setting("3", True), final=Setting("0", False))
    can = qs.what_a_user_can_send(found)
    assert can.readonly
    assert "limit" not in can.sent
    assert can.sent["final"] == "0"
    assert can.with_a_read({"max_execution_time": "9", "log_comment": "n"}) == {}
    named = [p.where for p in qs.setting_problems(found, qs.settings_to_send(found), ())]
    assert named == ["setting limit"]


def test_a_constraint_keeps_a_setting_from_being_sent() -> None:
    """[F2] Fixed, or out of bounds; one that admits the value is no obstacle."""
    found = server(
        final=Setting("1", True, fixed=True),
        max_block_size=Setting("100", False, least="10", most="1000"),
        offset=Setting("5", True, least="1"),
        limit=Setting("0", False, most="10"),
    )
    can = qs.what_a_user_can_send(found)
    assert {"final", "offset", "max_block_size"}.isdisjoint(can.sent)
    assert can.sent["limit"] == "0"
    stuck = {p.where for p in qs.setting_problems(found, qs.settings_to_send(found), ())}
    assert stuck == {"setting final", "setting offset"}


def test_a_bound_of_the_time_is_kept() -> None:
    found = server(max_execution_time=Setting("0", False, most="60"), log_comment=Setting("x", True, True))
    can = qs.what_a_user_can_send(found)
    assert can.with_a_read({"max_execution_time": "900", "log_comment": "n"}) == {"max_execution_time": "60"}


def test_blocks_that_cannot_be_made_smaller_are_refused_for_wide_rows() -> None:
    """[F11] Far below the 2 GiB that one Arrow column of strings can hold."""
    free = qs.what_a_user_can_send(server())
    assert free.block_settings(100_000) == {"max_block_size": "167"}
    assert free.block_problems(100_000) == []
    for found in (
        server(readonly=Setting("1", True)),
        server(max_block_size=Setting("65409", False, fixed=True)),
        server(max_block_size=Setting("65409", False, least="65409")),
    ):
        can = qs.what_a_user_can_send(found)
        assert can.block_settings(100_000) == {}
        assert can.block_problems(1_000) == []
        assert "set it to 167" in can.block_problems(100_000)[0].message
