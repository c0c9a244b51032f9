"""Break the code in one place at a time and see that a test fails: the program behind ``make mutants``.

    python -m tests.mutants [WORD ...]    # all, or those whose name contains one of the words

Each mutation is an exact replacement in a copy of the tree, never in place; then its tests run there. The
table says which test failed first. The exit code is 1 when a mutation survives, when the tests fail without
any mutation, or when the text to replace is not there exactly once: then the code has moved on, and the
mutation must follow it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("airflow_dpone", "tests", "companion", "pyproject.toml")
LONGEST_SEC = 600.0

DELIVERY, JOURNAL = "airflow_dpone/delivery", "airflow_dpone/journal"
STORIES = "tests/machine/test_stories.py"
DAMAGE = "tests/unit/delivery/test_damage.py"
LOST_RECEIPT = (
    "tests/unit/delivery/test_audit.py::test_a_target_that_was_put_back_between_receipt_and_evidence"
)
EPOCHS = "tests/unit/delivery/test_epochs.py"
NEW_TABLE = "tests/unit/delivery/test_new_table.py"
JOURNAL_CONTRACT = "tests/contract/test_journal_contract.py"
QUALITY = "tests/unit/delivery/test_quality.py"
TARGET_CONTRACT = "tests/contract/test_target_contract.py"


@dataclass(frozen=True)
class Mutant:
    """One fault.

    :param old: text that is exactly once in ``file``. :param new: what stands there instead.
    :param tests: what must notice it; the fastest that did when this was written.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


MUTANTS = (
    # ---- lease and fence
    Mutant(
        "lease: a write needs no lease at all",
        f"{JOURNAL}/lease.py",
        "        t.lease.c.fence == lease.fence,\n        t.lease.c.owner == lease.owner,\n",
        "",
        (STORIES,),
    ),
    Mutant(
        "lease: WHERE fence = mine is gone, the owner is still asked",
        f"{JOURNAL}/lease.py",
        "        t.lease.c.fence == lease.fence,\n",
        "",
        (JOURNAL_CONTRACT,),
    ),
    Mutant(
        "lease: a live owner is taken over at any time",
        f"{JOURNAL}/lease.py",
        "    if row.owner is None or row.expires_at <= row.now:\n",
        "    if row.owner is None or row.expires_at:\n",
        (STORIES,),
    ),
    Mutant(
        "fence: two sends share one (A2)",
        f"{JOURNAL}/lease.py",
        "    fence = max(lease.fence, gate_fence) + 1\n",
        "    fence = max(lease.fence, gate_fence)\n",
        (STORIES,),
    ),
    Mutant(
        "fence: the probe asks with the fence of the send (A2)",
        f"{DELIVERY}/recover.py",
        "    fence = run.new_fence()\n",
        "    fence = run.held_lease.fence\n",
        (STORIES,),
    ),
    # ---- admission
    Mutant(
        "admission: a missing table is made before it was asked whose it is",
        f"{DELIVERY}/survey.py",
        "_route_problems(found.gate if found else None, route, table)",
        "_route_problems(found.gate if found and not found.is_missing else None, route, table)",
        (f"{NEW_TABLE}::test_another_route_does_not_take_the_place_of_a_dropped_table",),
    ),
    Mutant(
        "admission: a missing table is made although something is wrong",
        f"{DELIVERY}/survey.py",
        "    findings.refuse()\n    if seen.source is None",
        "    if not found.is_missing:\n        findings.refuse()\n    if seen.source is None",
        (f"{NEW_TABLE}::test_nothing_is_made_while_anything_is_wrong",),
    ),
    Mutant(
        "admission: a target that is wrong hides what is wrong with the source",
        f"{DELIVERY}/phase1_admit.py",
        "                survey.refuse_whole(run, error, is_open=is_open)\n",
        "                pass\n",
        ("tests/unit/delivery/test_all_at_once.py",),
    ),
    Mutant(
        "admission: a resumed delivery loads into a table that changed",
        f"{DELIVERY}/drift.py",
        "    if found.fingerprint == plan.target.fingerprint:\n",
        "    if found.fingerprint:\n",
        ("tests/unit/delivery/test_drift.py",),
    ),
    # ---- the gate
    Mutant(
        "gate: a send with an old fence is let in (fake target)",
        "tests/fakes/sqlite_publication.py",
        'AND route_scope = :route AND fence < :fence "\n',
        'AND route_scope = :route "\n',
        (STORIES,),
    ),
    Mutant(
        "gate: a send with an old fence is let in (embedded target)",
        "airflow_dpone/target_embedded/statements.py",
        'AND fence < $fence\n   AND in_flight_operation_id IS NULL\n"""\n\n# First step of a probe',
        'AND in_flight_operation_id IS NULL\n"""\n\n# First step of a probe',
        (f"{TARGET_CONTRACT}::test_a_send_that_is_not_above_the_gate_does_nothing",),
    ),
    Mutant(
        "gate: a journal that lost its end goes on",
        f"{DELIVERY}/governed.py",
        "    if gate.fence > known:\n",
        "    if gate.fence > known + 1_000:\n",
        (STORIES,),
    ),
    Mutant(
        "gate: another journal goes on",
        f"{DELIVERY}/governed.py",
        "    if gate.journal_id != journal.journal_id:\n",
        "    if not gate.journal_id:\n",
        (STORIES,),
    ),
    Mutant(
        "gate: a publication that the journal forgot is not noticed",
        f"{DELIVERY}/phase1_admit.py",
        "        or run.state not in BEFORE_PUBLICATION\n",
        "        or run.state in BEFORE_PUBLICATION\n",
        ("tests/unit/delivery/test_recovery.py",),
    ),
    # ---- publication and receipt
    Mutant(
        "publication: no answer is taken for 'not effective' (A10)",
        f"{DELIVERY}/phase5_publish.py",
        "    else:\n        recover.settle_publication(run)\n",
        '    else:\n        run.record((S.PREPARED, recover.not_effective(run, "probe", None, None)))\n',
        (STORIES,),
    ),
    Mutant(
        "publication: it is sent before it is journaled (G3)",
        f"{DELIVERY}/phase5_publish.py",
        "    outcome = run.step([(S.PUBLISHING, sent)], lambda: _send(run, request))\n",
        "    outcome = _send(run, request)\n    run.record((S.PUBLISHING, sent))\n",
        (STORIES,),
    ),
    Mutant(
        "publication: the operation is sent again although its receipt is there (embedded target, A3)",
        "airflow_dpone/target_embedded/publication.py",
        "    if receipt is not None:\n        if not gate.is_of_this_intent(",
        "    if receipt is not None and not receipt:\n        if not gate.is_of_this_intent(",
        (f"{TARGET_CONTRACT}::test_the_same_operation_again_changes_nothing",),
    ),
    Mutant(
        "receipt: any receipt of the operation is believed",
        f"{DELIVERY}/recover.py",
        "    if receipt.draft.to_json() not in sent or receipt.receipt_sha256 != receipt.draft.sha256:\n",
        "    if not sent:\n",
        ("tests/unit/delivery/test_unknown_outcome.py",),
    ),
    Mutant(
        "receipt: the checkpoint does not look again (A7)",
        f"{DELIVERY}/phase7_checkpoint.py",
        "    if receipt is None or receipt.to_json() != stored:\n",
        "    if receipt is None and not stored:\n",
        ("tests/unit/delivery/test_unknown_outcome.py",),
    ),
    Mutant(
        "receipt: a removed one is taken for a rollback (A17)",
        f"{DELIVERY}/recover.py",
        "    elif answer.last_operation_id == plan.operation_id:\n",
        "    elif not answer.last_operation_id == plan.operation_id and plan is None:\n",
        ("tests/unit/delivery/test_unknown_outcome.py",),
    ),
    Mutant(
        "audit: only finished deliveries are compared (A7)",
        f"{JOURNAL}/publications.py",
        "        if S.PUBLISHED in payloads[row.invocation_key]\n",
        "        if S.PUBLISHED in payloads[row.invocation_key] and row.state == S.COMPLETED\n",
        (LOST_RECEIPT,),
    ),
    Mutant(
        "audit: a window that only overlaps a later one is called replaced",
        f"{DELIVERY}/coverage.py",
        "        return place >= 0 and self._ends[place] >= end\n",
        "        return place >= 0 and self._ends[place] > start\n",
        ("tests/unit/delivery/test_coverage.py",),
    ),
    Mutant(
        "audit: the oldest publication of a window is compared",
        f"{DELIVERY}/audit.py",
        "        if key not in newest or newest[key].fence < one.fence:\n",
        "        if key not in newest or newest[key].fence > one.fence:\n",
        (LOST_RECEIPT,),
    ),
    Mutant(
        "audit: a table that was made again vouches for the rows of the old one",
        f"{DELIVERY}/audit.py",
        "    if (found.object_id, found.created) != (one.object_id, one.created):\n",
        "    if found.created != one.created and found.object_id == 0:\n",
        ("tests/unit/delivery/test_audit.py::test_a_table_that_is_gone_or_another_one",),
    ),
    # ---- extraction epochs, chunks and proofs
    Mutant(
        "epoch: chunks of a dead extraction count (C2)",
        f"{DELIVERY}/history.py",
        "        return sorted((c for c in found if c.extraction_epoch == epoch), key=lambda c: c.ordinal)\n",
        "        return sorted((c for c in found if c.extraction_epoch <= epoch), key=lambda c: c.ordinal)\n",
        (STORIES,),
    ),
    Mutant(
        "epoch: a proved table of a dead extraction is kept (C2)",
        f"{DELIVERY}/history.py",
        "        found = self._attempts_of.get((chunk.extraction_epoch, chunk.ordinal), ())\n",
        "        found = [n for (_, o), ns in self._attempts_of.items() if o == chunk.ordinal for n in ns]\n",
        (EPOCHS,),
    ),
    Mutant(
        "epoch: what a dead process read is not thrown away",
        f"{DELIVERY}/phase2_extract.py",
        "    if epoch is not None:\n",
        "    if epoch is not None and epoch < 0:\n",
        (STORIES,),
    ),
    Mutant(
        "chunks: they need not be the ones that the end of the extraction listed",
        f"{DELIVERY}/phase3_stage.py",
        '    if listed != extracted["chunk_list_sha256"]:\n',
        "    if not listed:\n",
        (EPOCHS,),
    ),
    Mutant(
        "chunks: a sealed file is not hashed again",
        f"{DELIVERY}/attempts.py",
        "    spool.verify(run.chain.invocation_key, chunk)\n",
        "",
        (f"{DAMAGE}::test_one_flipped_byte_in_a_sealed_file_is_found_before_a_writer_sees_it",),
    ),
    Mutant(
        "proof: a raw table is believed by its count alone",
        f"{DELIVERY}/target_records.py",
        "(seen.rows, seen.digest) == (rows, digest)",
        "seen.rows == rows",
        (DAMAGE,),
    ),
    Mutant(
        "proof: the prepared table is not compared with the sealed chunks",
        f"{DELIVERY}/phase4_verify.py",
        "    if not seen.proves(expected):\n",
        "    if seen.overflow:\n",
        (DAMAGE,),
    ),
    Mutant(
        "quality: a failed check only warns, whatever its severity",
        f"{DELIVERY}/quality.py",
        'if one.severity == "error"]',
        'if one.severity == "fatal"]',
        (QUALITY,),
    ),
    Mutant(
        "quality: a key with a NULL in it is a key (DuckDB)",
        "airflow_dpone/target_embedded/statements.py",
        ') FROM {path} WHERE {some}"',
        ') FROM {path}"',
        ("tests/contract/test_table_checks.py",),
    ),
    Mutant(
        "publication: triggers are let through and the window is not hashed",
        "airflow_dpone/settings.py",
        "return self.after_image_digest or self.allow_triggers",
        "return self.after_image_digest",
        ("tests/unit/delivery/test_target_options.py",),
    ),
    Mutant(
        "target: a table that was dropped and made again is the same",
        f"{DELIVERY}/phase1_admit.py",
        "    if (found.object_id, found.created) == (planned.object_id, planned.created):\n",
        "    if found.object_id:\n",
        ("tests/unit/delivery/test_ownership.py",),
    ),
    # ---- custody and cleanup
    Mutant(
        "custody: another requester is let in",
        f"{JOURNAL}/store.py",
        "            custody.refuse_other_holder(connection, target_key, requester.delivery_key, row.now)\n",
        "",
        (STORIES,),
    ),
    Mutant(
        "custody: it need not agree with the delivery's state",
        f"{JOURNAL}/store.py",
        "                    custody.check_agrees(tx, write.invocation_key)\n",
        "                    pass\n",
        (JOURNAL_CONTRACT,),
    ),
    Mutant(
        "custody: it is given back before the end of a failure",
        f"{DELIVERY}/recover.py",
        "        owned.remove(run, DiagnosticCode.NONPUBLICATION)\n",
        "",
        ("tests/unit/delivery/test_failures_release.py",),
    ),
    # ---- the chain
    Mutant(
        "chain: an event need not have its hash",
        f"{JOURNAL}/chain.py",
        "    if identity.sha256_hex(text) != row.sha256:\n",
        "    if not row.sha256:\n",
        ("tests/unit/journal/test_damage.py",),
    ),
    Mutant(
        "chain: an event need not name the one before it",
        f"{JOURNAL}/chain.py",
        "        if row.previous_sha256 != previous:\n",
        "        if row.previous_sha256 == row.sha256:\n",
        ("tests/unit/journal/test_damage.py",),
    ),
)


def problem_of(mutant: Mutant, root: Path = ROOT) -> str | None:
    """Why the mutation cannot be made, or None."""
    file = root / mutant.file
    if not file.is_file():
        return f"{mutant.file} is not there"
    found = file.read_text(encoding="utf-8").count(mutant.old)
    missing = [test for test in mutant.tests if not (root / test.partition("::")[0]).is_file()]
    if missing:
        return f"there are no tests {', '.join(missing)}"
    return None if found == 1 else f"its text is {found} times in {mutant.file}"


def copy_of_the_tree(place: Path) -> Path:
    """A tree in which tests run, and nothing of the original changes."""
    place.mkdir()
    leave_out = shutil.ignore_patterns("__pycache__", ".hypothesis", "*.egg-info")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, place / name, ignore=leave_out)
        else:
            shutil.copy(source, place / name)
    return place


def first_failure(tree: Path, tests: Iterable[str]) -> str | None:
    """The first test that fails in this tree, or None; a process that hangs is one."""
    # A test that waits for a mended fault proves nothing here.
    options = ["-x", "-q", "-rfE", "--tb=no", "-p", "no:cacheprovider", "-m", "not xfail"]
    command = [sys.executable, "-B", "-m", "pytest", *options]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    try:
        done = subprocess.run(
            [*command, *tests],
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=LONGEST_SEC,
        )
    except subprocess.TimeoutExpired:
        return "(none ended in time)"
    if done.returncode == 0:
        return None
    told = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    if told is None:
        raise RuntimeError(f"the tests could not run: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return told[1]


def try_one(mutant: Mutant, scratch: Path) -> tuple[Mutant, str | None, float]:
    """(mutant, the first failing test, seconds)."""
    started = monotonic()
    tree = copy_of_the_tree(scratch / str(MUTANTS.index(mutant)))
    file = tree / mutant.file
    file.write_text(file.read_text(encoding="utf-8").replace(mutant.old, mutant.new), encoding="utf-8")
    caught = first_failure(tree, mutant.tests)
    shutil.rmtree(tree)
    return mutant, caught, monotonic() - started


def table(results: Sequence[tuple[Mutant, str | None, float]]) -> str:
    """One line for each mutation."""
    width = max(len(mutant.name) for mutant, _, _ in results)
    lines = [f"{'mutation':<{width}} | seconds | caught by"]
    for mutant, caught, seconds in results:
        shown = "SURVIVED" if caught is None else caught.rpartition("tests/")[2]
        lines.append(f"{mutant.name:<{width}} | {seconds:7.1f} | {shown}")
    return "\n".join(lines)


def main(words: Sequence[str]) -> int:
    """Tries the chosen mutations, two at a time."""
    chosen = [m for m in MUTANTS if not words or any(word in m.name for word in words)]
    problems = [f"{mutant.name}: {problem}" for mutant in chosen if (problem := problem_of(mutant))]
    if problems or not chosen:
        sys.stdout.write("\n".join(problems or ["no mutation is called like that"]) + "\n")
        return 1
    with tempfile.TemporaryDirectory(prefix="dpone-mutants-") as scratch:
        tests = sorted({test for mutant in chosen for test in mutant.tests})
        untouched = copy_of_the_tree(Path(scratch, "untouched"))
        with ThreadPoolExecutor(2) as pool:
            sound = pool.submit(first_failure, untouched, tests)
            results = list(pool.map(lambda mutant: try_one(mutant, Path(scratch)), chosen))
            failing = sound.result()
    sys.stdout.write(f"{table(results)}\n")
    if failing is not None:
        sys.stdout.write(f"Without any mutation {failing} fails: the table says nothing.\n")
    survived = sum(caught is None for _, caught, _ in results)
    sys.stdout.write(f"{len(results) - survived} of {len(results)} mutations were caught\n")
    return 1 if survived or failing is not None else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
