"""SQL statements of messages between agents: look, claim with a lease, acknowledge, give back, expire, prune."""

from __future__ import annotations

from caliber.model.agents import MessageOutcome, MessageState
from caliber.schema.relations import AGENT_MESSAGE
from caliber.storage.compile.codec import codec_of
from caliber.storage.compile.plan import Dialect
from caliber.storage.compile.spelling import literal, quote_all

_ACKNOWLEDGED, _EXPIRED = literal(MessageOutcome.ACKNOWLEDGED), literal(MessageOutcome.EXPIRED)


def message_statements(dialect: Dialect) -> dict[str, str]:
    """Return the text of each irregular statement about messages, in the words of a database."""
    table = dialect.table(AGENT_MESSAGE.name)
    row = quote_all(codec_of(AGENT_MESSAGE).names)
    one, two, three, four, five, six, seven, eight = (dialect.placeholder(at) for at in range(1, 9))
    skip = f"{dialect.row_lock} OF m SKIP LOCKED" if dialect.row_lock else ""
    ids = dialect.one_of(AGENT_MESSAGE.column("message_id"), "message_id", dialect.list_placeholder(1))

    def held(claimant: str) -> str:
        # The stored claim decides: a caller may have made up the message that it passes.
        mine = f"{ids} AND claim_id = {two} AND claimed_by = {claimant} AND ended_at IS NULL"
        return f"{mine} RETURNING message_id, mailbox, topic"

    def alive(name: str, now: str) -> str:
        return f"{name}.ended_at IS NULL AND ({name}.expires_at IS NULL OR {name}.expires_at > {now})"

    def ready(mailbox: str, now: str, bound: str) -> str:
        # A lease that begins far ahead was given by a clock that has been put back since.
        return (
            f"m.mailbox = {mailbox} AND {alive('m', now)} AND (m.available_at <= {now} OR m.claimed_at >= {bound})"
            f" AND (m.topic IS NULL OR NOT EXISTS (SELECT 1 FROM {table} AS e WHERE e.mailbox = m.mailbox"
            f" AND e.from_agent_id = m.from_agent_id AND e.topic = m.topic AND e.ordinal < m.ordinal"
            f" AND {alive('e', now)}))"
        )

    def first(mailbox: str) -> str:
        return (
            f"(SELECT m.rank FROM {table} AS m WHERE {ready(mailbox, three, four)} ORDER BY m.rank, m.ordinal LIMIT 1)"
        )

    claim = (
        f"SELECT m.ordinal FROM {table} AS m WHERE {ready(one, three, five)} AND m.rank <= {two}"
        f" ORDER BY m.rank, m.ordinal LIMIT {eight}{skip}"
    )
    lease = (
        f"available_at = {four}, claimed_at = {three}, claim_id = {six}, claimed_by = {seven},"
        f" attempts = attempts + 1, delivered_at = coalesce(delivered_at, {three}), version = version + 1"
    )
    over = f"expires_at IS NOT NULL AND expires_at <= {two}"
    of_state = (
        f"({one} = '' OR ({one} = {literal(MessageState.PENDING)} AND ended_at IS NULL AND claim_id IS NULL"
        f" AND NOT ({over})) OR ({one} = {literal(MessageState.DELIVERED)} AND ended_at IS NULL"
        f" AND claim_id IS NOT NULL AND NOT ({over})) OR outcome = {one}"
        f" OR ({one} = {_EXPIRED} AND ended_at IS NULL AND {over}))"
    )
    newest = f"ORDER BY ordinal DESC LIMIT {three}"
    return {
        "message.ready": f"SELECT {first(one)}, {first(two)}",
        # An array, or the database may look for the first ones more than once, and claim more.
        "message.claim": f"UPDATE {table} SET {lease} WHERE ordinal {dialect.among(claim)} RETURNING {row}",
        "message.ack": (
            f"UPDATE {table} SET ended_at = {three}, outcome = {_ACKNOWLEDGED}, version = version + 1"
            f" WHERE {held(four)}"
        ),
        "message.extend": (f"UPDATE {table} SET claimed_at = {three}, available_at = {four} WHERE {held(five)}"),
        "message.release": (
            f"UPDATE {table} SET claimed_at = {three}, available_at = {four}, claim_id = NULL, claimed_by = NULL,"
            f" version = version + 1 WHERE {held(five)}"
        ),
        "message.backlog": (
            f"SELECT count(*) FROM (SELECT 1 FROM {table} AS m WHERE m.mailbox = {one} AND {alive('m', two)}"
            f" LIMIT {three}) AS waiting"
        ),
        "message.next": (
            f"SELECT min(m.available_at) FROM {table} AS m WHERE m.mailbox IN ({one}, {two}) AND {alive('m', three)}"
            f" AND m.available_at > {three}"
        ),
        "message.expire": (
            f"UPDATE {table} SET ended_at = expires_at, outcome = {_EXPIRED}, version = version + 1"
            f" WHERE ended_at IS NULL AND expires_at IS NOT NULL AND expires_at <= {one}"
            f" AND (claim_id IS NULL OR available_at <= {one})"  # a receiver at work may still acknowledge it
        ),
        "message.prune": f"DELETE FROM {table} WHERE ended_at IS NOT NULL AND ended_at < {one}",
        "message.list": f"SELECT {row} FROM {table} WHERE {of_state} {newest}",
        "message.list_of": (
            f"SELECT {row} FROM {table} WHERE {of_state}"
            f" AND (from_agent_id = {four} OR to_agent_id = {four} OR claimed_by = {four} OR mailbox = {five}) {newest}"
        ),
    }
