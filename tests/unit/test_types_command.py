"""``python -m airflow_dpone types``: what it prints is the matrix, and the page is made of the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_dpone.cli.arguments import main
from airflow_dpone.errors import CATALOGUE, Problem
from airflow_dpone.wire import matrix
from airflow_dpone.wire.sql_type import REFUSED_TARGETS
from airflow_dpone.wire.types import TypePair, resolve

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "types.md"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any], str]:
    code = main(["types", *arguments])
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert len(lines) == 1
    return code, json.loads(lines[0]), err


def test_the_matrix_is_for_people_on_stderr_and_for_programs_on_stdout(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, document, err = run(capsys)
    assert (code, document["schema"]) == (0, "dpone.types.v1")
    for row in document["pairs"]:
        assert row["targets"], row
        assert f"{row['source']} " in err
        assert ", ".join(row["targets"]) in err
        for target in matrix.TARGETS:
            exact = isinstance(resolve("c", row["source"], target, True), TypePair)
            assert exact is (target in row["targets"]), (row["source"], target)
    assert [row["source"] for row in document["pairs"]] == matrix.SOURCES
    assert document["refused_targets"] == REFUSED_TARGETS
    assert document["refused_sources"] == matrix.refused_sources()
    for name, why in (document["refused_sources"] | document["refused_targets"]).items():
        assert f"  {name} " in err
        assert why in err


def test_every_target_of_the_list_holds_some_source() -> None:
    """All but one, which is there to show that FixedString(16) is not padded."""
    reached = {target for row in matrix.exact_pairs() for target in row.targets}
    assert reached == set(matrix.TARGETS) - {"binary(20)"}


def test_the_page_has_the_same_rows() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    for row in matrix.exact_pairs():
        targets = ", ".join(f"`{target}`" for target in row.targets)
        assert f"| `{row.source}` | {targets} | {', '.join(row.arrow)} |" in lines


@pytest.mark.parametrize("source", matrix.refused_sources())
def test_a_listed_refusal_is_refused(source: str) -> None:
    for target in matrix.TARGETS:
        assert isinstance(resolve("c", source, target, True), Problem)


@pytest.mark.parametrize(
    ("arguments", "arrow", "words"),
    [
        (("Decimal(38,10)", "decimal(38,10)"), "decimal128(38, 10)", "decimal(38,10) NULL exactly."),
        (("Int32", "bigint", "--not-null"), "int64", "bigint NOT NULL exactly."),
        (("Nullable(Int32)", "int", "--not-null", "--fail-on-null"), "int32", "the first NULL stops"),
        (("String", "NVARCHAR(MAX)"), "large_string", "nvarchar(max)"),
    ],
)
def test_a_pair_that_is_exact(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], arrow: str, words: str
) -> None:
    source, target, *flags = arguments
    code, document, err = run(capsys, "--source", source, "--target", target, *flags)
    assert (code, document["schema"], document["admitted"]) == (0, "dpone.type-pair.v1", True)
    assert (document["source"], document["target"]) == (source, target)
    assert (document["arrow"], document["code"]) == (arrow, None)
    assert words in document["message"]
    assert err.startswith("admitted: ")
    assert arrow in err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("Decimal(38,10)", "decimal(20,10)"), "dpone.types.scale", "use decimal(38,10)"),
        (("Nullable(Int32)", "int", "--not-null"), "dpone.types.nullability", "options.fail_on_null=True"),
        (("Int64", "int", "--fail-on-null"), "dpone.types.pair", "use bigint"),
        (("Int128", "bigint"), "dpone.types.unsupported", "toDecimal128"),
        (("Int64", "money"), "dpone.types.unsupported", "decimal(19,4)"),
        (("Weather", "int"), "dpone.types.unsupported", "python -m airflow_dpone types"),
    ],
)
def test_a_pair_that_is_refused_says_why(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: str, words: str
) -> None:
    source, target, *flags = arguments
    exit_code, document, err = run(capsys, "--source", source, "--target", target, *flags)
    assert (exit_code, document["admitted"], document["arrow"]) == (1, False, None)
    assert document["code"] == code
    assert words in document["message"]
    assert document["message"] in err
    assert err.startswith("refused: ")


@pytest.mark.parametrize(
    "arguments", [["--source", "Int8"], ["--target", "int"], ["--not-null"], ["--fail-on-null"]]
)
def test_wrong_usage(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["types", *arguments])
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "--source" in err


def test_the_errors_about_types_name_the_command() -> None:
    for code in ("dpone.types.unsupported", "dpone.types.pair", "dpone.types.scale", "dpone.types.length"):
        assert "`python -m airflow_dpone types`" in CATALOGUE[code].next_action


def test_it_opens_no_engine_and_no_airflow() -> None:
    script = (
        "import sys; from airflow_dpone.cli.arguments import main; main(['types']); "
        "print([m for m in ('airflow', 'chdb', 'duckdb', 'sqlalchemy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
