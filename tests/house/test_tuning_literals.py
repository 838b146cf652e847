"""No number tunes behaviour outside the configuration, but for those listed here, each with its reason."""

from __future__ import annotations

import pytest
from support.house.tuning import tuning, tuning_in

# K-002 O-11

ROOMS = {
    "config": "The knobs, their bounds and the profiles: where tuning numbers belong.",
    "kernels": "Formats, mathematics and tables that the C kernels share; their twins must have the same numbers.",
    "model": "Numbers of enumerations, units of time, and what a record may hold.",
    "schema": "Numbers of relations and versions of the schema.",
    "cli": "What people are shown: widths, numbers of lines, defaults of options, which every call can say otherwise.",
    "importing": "How a source is read by the commands that import it, which every call can say otherwise.",
    "testing": "Example data of the contract suite.",
}
"""Rooms whose numbers are not looked at, and why."""

WAITS = "How often something that others decide is looked at again, or how finely a wait is cut: results are the same."
PATIENCE = "How long a closing, a takeover or a removal waits for what is under way, before it says that it could not."
PIECES = "In what pieces work is done or memory is taken: the result does not depend on it."
BOUNDS = (
    "A bound of what is taken in or kept, so that bad input costs a known time and memory; a larger one is refused."
)
PROTOCOL = "A number of a protocol, format, operating system or database, which others decide."
MATHS = "A constant of a formula or of a unit of measure."
SHOWN = "How much of something a message or report shows to people."
METHOD = (
    "Part of a method that the configuration chooses by name (extractive, rules, hash, minilm): another number would be"
    " another method, and what it found could not be reproduced under the name."
)
NO_KNOB_YET = "Tunes a rare path and says so where it stands; whoever needs another value makes it a knob."

ALLOWED: dict[str, str] = {}
"""``module:constant`` or ``module:function``, and why its numbers may stand there."""


def _allow(reason: str, **modules: str) -> None:
    for module, names in modules.items():
        for name in names.split():
            ALLOWED[f"{module.replace('__', '.')}:{'' if name == '-' else name}"] = reason


_allow(
    WAITS,
    agents__locks="_SHORTEST_S Acquiring.attempt",
    agents__locking__lock_queue="_RENEWED_AT _TOO_FAR",
    agents__mail__delivery="PUT_BACK_US",
    api__several__aio_tenants="WAIT_STEP_S",
    jobs__claims="extend_all",
    backends__postgres__maintaining__erasing="_PAUSE_S",
    backends__postgres__moving__fence="_PAUSE_S",
    backends__postgres__connecting__external_pool="ExternalPool._ask_lender",
    backends__postgres__writing__listener="Listener._run _FIRST_WAIT_S _LONGEST_WAIT_S",
    localserver__guard="POLL_S",
    localserver__place="LOCK_POLL_S",
    localserver__server="_fill",
    backends__postgres__maintaining__log="_PAUSE_S _LONG_PAUSE_S",
    backends__postgres__connecting__lock_retry="TURN_MS _PAUSE_S",
    backends__postgres__searching__vector_index="_KNOWN_S _LOOK_S",
    backends__postgres__writing__outcome="was_committed",
    backends__postgres__writing__writer="_BACKOFF_S _LEAST_MS _SHARED_LOCK_MS",
    backends__sqlite__maintaining__maintenance="SqliteMaintenance.copy_to",
    backends__sqlite__maintaining__erasing="_PAUSE_S",
    engine__commit_waiters="_AFTER_WRITE _REST_AFTER_NEWS",
    backends__sqlite__connecting__file_writes="_LONGEST_S",
    engine__fork_imports="_before",
    llm__remote__limiter="_HELD_MOST_S",
    llm__remote__wire="_LEAST_S",
    engine__write_behind="WriteBehind._make_room _RETRY_S",
    engine__pacing="FOREIGN_S LOOK_SHARE REST_MAX_S SLICE_S",
    search__in_database__opening="_AGAIN_S _OTHERS_S",
    engine__deadlines="KEPT_MOST_MS",
)
_allow(
    PATIENCE,
    backends__postgres__maintaining__erasing="_PATIENCE_MS",
    backends__postgres__moving__fence="REMOVING_MS _PATIENCE_MS",
    backends__postgres__connecting__external_pool="_TRIES",
    backends__postgres__writing__listener="Listener.stop",
    localserver__guard="STOP_S",
    localserver__place="Place._claim_directory Place.claim _lock_file_now locked",
    localserver__server="LocalServer.start TCP_TRIES",
    backends__postgres__connecting__lock_retry="_RACES_MAX",
    backends__postgres__searching__vector_index="_CANCEL_S",
    backends__postgres__writing__outcome="_OUTCOME_WAIT_S",
    storage__write__group="_COMPANION_S",
    engine__write_behind="WriteBehind._drain WriteBehind.close",
    erasure__service="_BEHIND_MS _WAIT_MS",
    erasure__store="_WAIT_MS",
    engine__background="STOP_S HANGS_S",
    api__tenants="WAIT_MS _SCRUB_S",
    tenancy__pool="HandlePool._claim HandlePool.excluded HandlePool.close",
)
_allow(
    PIECES,
    agents__locking__lock_queue="_PAGE",
    agents__locking__lock_reaping="PAGE",
    search__stored_content="_MANY",
    backends__postgres__bulk__loading="_RECORDS_AT_ONCE",
    backends__postgres__maintaining__erasing="PostgresEraser._values",
    backends__postgres__searching__full_text="_BATCH_ROWS",
    localserver__files="_copy_file",
    backends__postgres__searching__vector_index="_BESIDE",
    backends__sqlite__maintaining__maintenance="_PAGES",
    backends__sqlite__searching__full_text="_BATCH_ROWS",
    backends__sqlite__maintaining__restoring="_LEAP",
    context__columns="PARTS_IN_ONE VALUES_IN_ONE",
    resident__indexes="_PAGE_ROWS",
    resident__mirrors="_PAGE_ROWS",
    resident__tables="_LEAST_BITS",
    resident__verifier="_of_relation _of_vectors",
    admin__checking="_PAGE",
    admin__stats="_PAGE",
    admin__maintenance="PAGE",
    erasure__proving="_PAGE",
    retention__retaining="_BATCHES",
    admin__spaces="_BATCH_ROWS",
    jobs__queue="_AHEAD_PAGE",
    trajectory__summarizer="_JOBS_PAGE",
    admin__table="_PAGE",
    search__in_database__full_text="_WORDS_KEPT",
    search__in_database__stored="_WORDS_KEPT",
    storage__bulk__load="KEYS_A_RECORD",
    storage__compile__conditions="PAGE_ROWS NUMBERS",
    storage__maintain__moving="_AT_ONCE",
    storage__write__unit_of_work="UnitOfWork.pages",
    tenancy__move="FEW",
    learning__results="_LOOKED_AT",
)
_allow(
    BOUNDS,
    localserver__place="NEEDED_BYTES",
    dsl__scan="FAULTS_MAX MAX_TOKENS",
    llm__remote__http="_ADDRESS_CHARS",
    erasure__notations="ROUNDS _unescaped",
    erasure__subject="_TEXTS_MAX _LEAST_DIGITS _MARKS_MOST _pieces",
    admin__tables="_LIMIT_MAX",
    agents__locks="LIST_MAX",
    agents__conflicts__detecting="_MOST",
    agents__conflicts__resolving="_MOST",
    agents__handing__parties="MAX_ITEMS",
    text__recurrence="_NUMBER_MAX",
    workspace__calendar="REMINDER_MINUTES_MAX",
    search__ranking__names="_LONGEST",
    storage__compile__conditions="MOST_VALUES",
    storage__maintain__moving="NAMED_MOST",
)
_allow(
    PROTOCOL,
    erasure__redaction="_ID_CHARS",
    storage__migrate__dropped_relations="PENDING_TRIGGER POLICY_RUN USAGE",
    storage__migrate__migrations="MIGRATIONS SCHEMA_VERSION",
    backends__postgres__connecting__dialling="_PARAMETERS",
    backends__postgres__maintaining__erasing="PostgresEraser._clear_samples",
    localserver__files="LOG_IDENTIFIER _copy_owned _crc32c _initialise cache_folder copy_programs",
    localserver__guard="PR_SET_CHILD_SUBREAPER",
    localserver__place="- LONGEST_SOCKET_PATH",
    localserver__server="UNIX_PORT",
    localserver__settings="write_settings",
    backends__postgres__maintaining__log="LogScrub._holders",
    backends__postgres__schema="OLDEST_SERVER check_server",
    backends__postgres__statements="ADVISORY_CLASS",
    backends__postgres__writing__notify="PAYLOAD_MAX_BYTES",
    backends__postgres__searching__vector_index="_EF_MAX _HALF_MAX _ROWS_A_LIST",
    backends__postgres__searching__vector_plans="HALFVEC_MAX VECTOR_MAX",
    backends__postgres__connecting__wire="- _LAST_US _SINCE_2000_US",
    backends__sqlite__connecting__connection="APPLICATION_ID",
    backends__sqlite__directory="APPLICATION_ID",
    context__columns="FIELDS",
    context__record__record="_ONE_F32",
    context__gather__turns="_VERSION_SHIFT",
    context__window="_VARIANT _VERSION_8",
    llm__remote__http="HttpClient._document HttpClient._refused _RETRIED _meaning",
    llm__local__minilm="DIMENSIONS _VOCABULARY",
    llm__options="EMBEDDING",
    llm__remote__embedding="_OF_THE_CONTENT",
    resident__mirror="_ENTRY_BYTES",
    erasure__subject="_INVISIBLE _UNSPACED",
    dump__archive="only_one write_archive",
    storage__bulk__checks="-",
)
_allow(
    METHOD,
    learning__learner="_CONTEXT_BYTES",
    learning__rules__answers="question_of",
    learning__rules__reading="_YOUNGEST",
    learning__rules__recent="_CLOSE _SPELT_OUT",
    text__contradiction__clauses="ClauseBuilder.plain _AMPM",
    text__contradiction__measures="MeasureReader.clock MeasureReader.counted MeasureReader.number MeasureReader.single "
    "MeasureReader.version _AMPM _OLDEST",
    text__contradiction__quantities="Clock.excludes NUMBERS PARTS Quantity.excludes SCALES _CONVERTED _ROUGH _TIME "
    "_UNITS season_of"
    " _YEAR_DAYS date_of",
    text__contradiction__rules="_ALIKE _SAME_TOPIC",
)
_allow(
    BOUNDS,
    pcp__formats="_HEAD_CHARS",
    pcp__pairs="_MAX_PAIRS",
    pcp__validation="_READ_PAIRS",
    text__contradiction__reading="_MAX_CHARS _MAX_CLAUSES",
)
_allow(
    PATIENCE,
    pcp__verifying="_SHARE",
)
_allow(
    MATHS,
    context__gather__shared="_DAY_US",
    pcp__validation="_DAY_US",
    context__record__record="_SECOND_US",
    context__texts="_DAY_US",
    context__window="_EPOCH",
    dsl__parser="_UNITS_MS",
    llm__remote__limiter="_MINUTE_S",
    erasure__erasing="_ALL_TIME_US",
    text__dates="DAY_US _YEARS_BACK",
    text__recurrence="_SHORTEST_MONTH",
    search__ranking__fusion="LEAST _TOP_IMPORTANCE",
    search__ranking__legs="_idf",
    search__ranking__recent="_HALF",
    search__stats="StoredStats.rarity",
    storage__compile__codec="_us",
)
_allow(
    SHOWN,
    integrations__otel="_SECONDS",
    explain__labels="LABEL_CHARS",
    explain__page__render="_OPEN_MOST _budget",
    admin__facet="Admin.operations",
    admin__operations="_MOST _figures",
    api__faces___aio_admin="AsyncAdmin.operations",
    context__rules="_SHOWN_CHARS",
    jobs__facet="Jobs.list",
    pcp__facet="Pcp.conflicts",
    api__faces___aio_pcp="AsyncPcp.conflicts",
    api__faces___aio_jobs="AsyncJobs.list",
    agents__conflicts__resolving="AgentConflicts.list",
    agents__handing__delegating="Delegations.list Delegations.pending",
    agents__handing__handing_off="Handoffs.list Handoffs.pending",
    agents__mail__messages="Messages.list",
    api__faces___aio_agents_delegating="AsyncDelegations.list AsyncDelegations.pending",
    api__faces___aio_agents_handing_off="AsyncHandoffs.list AsyncHandoffs.pending",
    api__faces___aio_agents_messages="AsyncMessages.list",
    api__faces___aio_agents_resolving="AsyncAgentConflicts.list",
    workspace__tasks="WorkspaceTasks.list",
    workspace__values="Values.list",
    api__faces___aio_workspace="AsyncValues.list AsyncWorkspaceTasks.list",
    dsl__printer="LINE_CHARS",
    dsl__source="_LINE_CHARS _REASON_CHARS _SUGGESTED_FROM",
    llm__embedding="_SHOWN",
    storage__maintain__integrity="EXAMPLES",
)
_allow(
    METHOD,
    text__blocks="_LINE_CHARS _block_at _fenced is_diff",
    text__comparison="_MAX_CHARS _NEARLY_IDENTICAL",
    llm__local__hashed="_KEPT_WORDS _NGRAM_WEIGHT",
    text__naming="MAX_ENTITY_CHARS _MAX_CHARS_READ",
    text__note_rules="_FIX_CERTAINTY _FIX_WITHIN_TURNS _HEADLINE_CHARS _MAX_ERROR_CHARS _MAX_SUMMARY_CHARS"
    " _OUTCOME_CONFIDENCE _SUMMARY_CERTAINTY",
    text__rules="MAX_ARTIFACTS_PER_TURN MAX_CHARS_READ _FOLDED_CHARS",
    text__key_sentences="_MAX_SENTENCES _PARTS",
    text__sections="PART_CHARS _LEAST_LETTERS",
    text__sentences="_SHORT_LINE _WORD_BEFORE prefix_end",
    llm__language_model="_REASON_CHARS",
    learning__asking="_REASON_CHARS _STATEMENT_CHARS",
    learning__rules__candidates="Candidate",
    learning__results="_SHOWN",
    learning__rules__clauses="MAX_CHARS_READ _MAX_CLAUSE _MAX_SENTENCE",
    learning__rules__reading="_MAX_STATED",
    learning__rules__subjects="_MAX_PEOPLE",
    learning__lexicon__words="MAX_VALUE _MAX_WORDS",
    learning__rules__matching="_ITEM_WORDS",
    text__statements="MAX_STATEMENT_CHARS MIN_STATEMENT_CHARS _CUES _LABELS",
    text__textrank="MAX_CHARS_READ MAX_SENTENCES _CENTRAL _DAMPING _MAX_CHARS_EMBEDDED _MAX_ITERATIONS"
    " _MAX_WORDS_COUNTED _REDUNDANT _SIMILARITY_DECIMALS _TOLERANCE",
)
_allow(
    NO_KNOB_YET,
    context__filling__shown_turns="_AIMED",
    erasure__drawn="_PART_CHARS",
    erasure__erasing="_SHARED_FROM _SHARED_PART",
    embedding__reembedding="REFUSED_SHARE STRICT_ATTEMPTS",
    search__searcher="_DIVERSE_POOL",
)


def test_numbers_that_tune_are_knobs_or_have_a_reason() -> None:
    found = tuning(ROOMS)
    assert sorted(found - ALLOWED.keys()) == [], (
        "make these knobs (caliber/config), or list them here with their reason"
    )
    assert sorted(ALLOWED.keys() - found) == [], "these are gone: take them off the list"


def test_every_reason_says_something() -> None:
    reasons = set(ALLOWED.values())
    assert all(len(reason) > 30 for reason in (*ROOMS.values(), *reasons))


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("_RATIO = 0.95", "_RATIO"),
        ("LIMIT: Final = 20", "LIMIT"),
        ("def fill(x):\n    return x * 0.95", "fill"),
        ("def fill(x):\n    if x > 8_000:\n        return 1", "fill"),
        ("def find(*, limit: int = 20): ...", "find"),
        ("def find():\n    return search(limit=20)", "find"),
        ("class A:\n    def f(self):\n        time.sleep(0.2)", "A.f"),
        ("class A:\n    SHARE = -0.5", "SHARE"),
        ("AGE_MS = 30 * 24 * 60 * 60 * 1_000", "AGE_MS"),
        ("WEIGHTS = {'vector': 0.4}", "WEIGHTS"),
        ("score = lambda x: 0.7 * x", ""),
    ],
)
def test_a_planted_number_is_found(source: str, name: str) -> None:
    assert set(tuning_in(source, "m")) == {f"m:{name}"}


@pytest.mark.parametrize(
    "source",
    [
        "NONE, ONE, TWO = 0, 1, 2",
        "_PAGE = 1 << 16",
        "_MASK = 0xFFFF",
        "def f(x):\n    return x[3:7], x / 1_000, x[-1]",
        "half = x / 2.0",
        "def f():\n    return 2**63 - 1",
    ],
)
def test_what_tunes_nothing_is_left_alone(source: str) -> None:
    assert set(tuning_in(source, "m")) == set()
