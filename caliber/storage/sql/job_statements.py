"""SQL statements of the job queue: select due jobs, claim with a lease, extend, complete, fail."""

from __future__ import annotations

from caliber.model.jobs import JobOutcome, JobState
from caliber.schema.relations import ERASURE, JOB, TRAJECTORY
from caliber.storage.compile.codec import codec_of
from caliber.storage.compile.plan import Dialect
from caliber.storage.compile.spelling import literal, quote

_CLAIMED = "available_at = {until}, scheduled_at = {now}, begun_at = coalesce(begun_at, {now}), claimed_by = {claimant}"


def job_statements(dialect: Dialect) -> dict[str, str]:
    """Return the text of each irregular statement about jobs, in the words of a database."""
    job, trajectory = dialect.table(JOB.name), dialect.table(TRAJECTORY.name)
    row = ", ".join(quote(name) for name in codec_of(JOB).names)
    one, two, three, four, five = (dialect.placeholder(at) for at in range(1, 6))
    outcomes = ", ".join(literal(outcome) for outcome in JobOutcome)
    erased = f"(SELECT count(*) FROM {dialect.table(ERASURE.name)})"
    ack = f"ended_at = {three}, outcome = {four}, claimed_by = NULL, version = version + 1"
    claimed = _CLAIMED.format(now=two, until=three, claimant=four) + ", attempts = attempts + 1, version = version + 1"
    available = f"SELECT job_id FROM {job} WHERE kind = {one} AND ended_at IS NULL AND available_at <= {two}"
    newest = f"SELECT scheduled_at FROM {job} WHERE ended_at IS NULL AND scheduled_at >= {two}"
    ahead = f"({newest} ORDER BY scheduled_at DESC LIMIT 1) IS NOT NULL"  # any one would do; so both use the index
    skip = f"{dialect.row_lock} SKIP LOCKED" if dialect.row_lock else ""
    first = f"{available} ORDER BY available_at LIMIT {five}{skip}"
    # The task is locked first: a deletion of the task locks it too, and then its jobs.
    task = f"SELECT trajectory_id FROM {trajectory} WHERE trajectory_id = {five}"
    task = f"WITH task AS MATERIALIZED ({task} FOR KEY SHARE) SELECT trajectory_id FROM task" if skip else task
    return {
        "job.next": (
            f"SELECT value, (SELECT available_at FROM {job} WHERE kind = value AND ended_at IS NULL"
            f" ORDER BY available_at LIMIT 1), {ahead} FROM ({dialect.in_texts(1)}) AS kinds"
        ),
        # An array, or the database may look for the first ones more than once, and claim more.
        "job.claim": (f"UPDATE {job} SET {claimed} WHERE job_id {dialect.among(first)} RETURNING {row}"),
        "job.claim_one": (
            f"UPDATE {job} SET {claimed} WHERE job_id = {one} AND ended_at IS NULL"
            f" AND (claimed_by IS NULL OR available_at <= {two}) RETURNING {row}"
        ),
        "job.hold": (
            f"SELECT job_id FROM {job} WHERE job_id = {one} AND version = {two} AND ended_at IS NULL{dialect.row_lock}"
        ),
        "job.extend": (
            f"UPDATE {job} SET scheduled_at = {three}, available_at = {four}"
            f" WHERE job_id = {one} AND version = {two} AND ended_at IS NULL"
        ),
        "job.report": (
            f"UPDATE {job} SET attempts = CASE WHEN done < {three} THEN 1 ELSE attempts END,"
            f" error = CASE WHEN done < {three} THEN NULL ELSE error END, done = {three}, total = {four}"
            f" WHERE job_id = {one} AND version = {two} AND ended_at IS NULL"
        ),
        "job.end": (
            f"UPDATE {job} SET {ack} WHERE job_id = {one} AND version = {two} AND ended_at IS NULL RETURNING {erased}"
        ),
        "job.end_of_task": (
            f"UPDATE {job} SET {ack} WHERE job_id = {one} AND version = {two} AND trajectory_id = ({task})"
            f" AND ended_at IS NULL RETURNING {erased}"
        ),
        "job.prune": f"DELETE FROM {job} WHERE outcome IN ({outcomes}) AND ended_at < {one}",
        "job.prune_abandoned": (
            f"DELETE FROM {job} WHERE ended_at IS NULL AND available_at < {one} AND kind NOT IN ({dialect.in_texts(2)})"
        ),
        "job.list_open": (
            f"SELECT {row} FROM {job} WHERE ended_at IS NULL AND ({one} = '' OR kind = {one})"
            f" AND ({two} = '' OR (claimed_by IS NULL) = ({two} = {literal(JobState.WAITING)}))"
            f" ORDER BY kind, available_at LIMIT {three}"
        ),
        "job.list_ended": (
            f"SELECT {row} FROM {job} WHERE ended_at IS NOT NULL AND outcome = {one} AND ({two} = '' OR kind = {two})"
            f" ORDER BY ended_at DESC LIMIT {three}"
        ),
        "job.counts": (f"SELECT kind, count(*) FROM {job} WHERE ended_at IS NULL GROUP BY kind ORDER BY kind"),
    }
