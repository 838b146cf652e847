-- Every statement of sqlite, as compiled; see test_plans.py.

-- ===== session

CREATE TABLE "session" (
  "ordinal" INTEGER PRIMARY KEY AUTOINCREMENT,
  "session_id" BLOB NOT NULL CHECK (length("session_id") = 16),
  "initiator_type" TEXT NOT NULL CHECK ("initiator_type" IN ('trajectory', 'scope', 'turn', 'turn_summary', 'artifact', 'note', 'session', 'agent', 'user', 'system', 'edge', 'checkpoint', 'context_window', 'embedding', 'embedding_space', 'event', 'lock', 'message', 'delegation', 'handoff', 'conflict', 'job', 'config')),
  "initiator_id" BLOB NOT NULL CHECK (length("initiator_id") = 16),
  "started_at" INTEGER NOT NULL,
  "last_active_at" INTEGER NOT NULL,
  "ended_at" INTEGER,
  "version" INTEGER NOT NULL CHECK ("version" >= 1),
  UNIQUE ("session_id")
) STRICT;

CREATE INDEX "ix_session_list_open" ON "session" ("started_at") WHERE "ended_at" IS NULL;

-- session.insert
--   takes: ordinal, session_id, initiator_type, initiator_id, started_at, last_active_at, ended_at, version
--   gives: ordinal
INSERT INTO "session" ("ordinal", "session_id", "initiator_type", "initiator_id", "started_at", "last_active_at", "ended_at", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) RETURNING "ordinal";

-- session.insert_or_ignore
--   takes: ordinal, session_id, initiator_type, initiator_id, started_at, last_active_at, ended_at, version
--   gives: ordinal
INSERT INTO "session" ("ordinal", "session_id", "initiator_type", "initiator_id", "started_at", "last_active_at", "ended_at", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) ON CONFLICT DO NOTHING RETURNING "ordinal";

-- session.upsert
--   takes: ordinal, session_id, initiator_type, initiator_id, started_at, last_active_at, ended_at, version
--   gives: ordinal
INSERT INTO "session" ("ordinal", "session_id", "initiator_type", "initiator_id", "started_at", "last_active_at", "ended_at", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) ON CONFLICT ("session_id") DO UPDATE SET "initiator_type" = excluded."initiator_type", "initiator_id" = excluded."initiator_id", "started_at" = excluded."started_at", "last_active_at" = excluded."last_active_at", "ended_at" = excluded."ended_at", "version" = excluded."version" RETURNING "ordinal";

-- session.get
--   takes: session_id
--   gives: ordinal, session_id, initiator_type, initiator_id, started_at, last_active_at, ended_at, version
SELECT "ordinal", "session_id", "initiator_type", "initiator_id", "started_at", "last_active_at", "ended_at", "version" FROM "session" WHERE "session_id" = ?1;

-- session.update
--   takes: initiator_type, initiator_id, started_at, last_active_at, ended_at, version, session_id, version
UPDATE "session" SET "initiator_type" = ?1, "initiator_id" = ?2, "started_at" = ?3, "last_active_at" = ?4, "ended_at" = ?5, "version" = ?6 WHERE "session_id" = ?7 AND "version" = ?8;

-- session.delete
--   takes: session_id
DELETE FROM "session" WHERE "session_id" = ?1;

-- session.count
--   takes: nothing
--   gives: count
SELECT count(*) FROM "session";

-- session.page
--   takes: ordinal, limit
--   gives: ordinal, session_id, initiator_type, initiator_id, started_at, last_active_at, ended_at, version
SELECT "ordinal", "session_id", "initiator_type", "initiator_id", "started_at", "last_active_at", "ended_at", "version" FROM "session" WHERE "ordinal" > ?1 ORDER BY "ordinal" LIMIT ?2;

-- session.get_many
--   takes: ordinals
--   gives: ordinal, session_id, initiator_type, initiator_id, started_at, last_active_at, ended_at, version
SELECT "ordinal", "session_id", "initiator_type", "initiator_id", "started_at", "last_active_at", "ended_at", "version" FROM "session" WHERE "ordinal" IN (SELECT value FROM json_each(?1));

-- session.list_open
--   takes: nothing
--   gives: ordinal, session_id, initiator_type, initiator_id, started_at, last_active_at, ended_at, version
SELECT "ordinal", "session_id", "initiator_type", "initiator_id", "started_at", "last_active_at", "ended_at", "version" FROM "session" WHERE "ended_at" IS NULL ORDER BY "started_at";

-- ===== trajectory

CREATE TABLE "trajectory" (
  "ordinal" INTEGER PRIMARY KEY AUTOINCREMENT,
  "trajectory_id" BLOB NOT NULL CHECK (length("trajectory_id") = 16),
  "status" TEXT NOT NULL CHECK ("status" IN ('active', 'completed', 'failed', 'suspended')),
  "initiator_type" TEXT NOT NULL CHECK ("initiator_type" IN ('trajectory', 'scope', 'turn', 'turn_summary', 'artifact', 'note', 'session', 'agent', 'user', 'system', 'edge', 'checkpoint', 'context_window', 'embedding', 'embedding_space', 'event', 'lock', 'message', 'delegation', 'handoff', 'conflict', 'job', 'config')),
  "initiator_id" BLOB NOT NULL CHECK (length("initiator_id") = 16),
  "goal_hash" BLOB NOT NULL CHECK (length("goal_hash") = 32),
  "created_at" INTEGER NOT NULL,
  "updated_at" INTEGER NOT NULL,
  "last_activity_at" INTEGER NOT NULL,
  "goal" TEXT,
  "tags" TEXT NOT NULL CHECK (json_valid("tags")),
  "outcome" TEXT CHECK (json_valid("outcome")),
  "parent_trajectory_id" BLOB CHECK (length("parent_trajectory_id") = 16),
  "session_id" BLOB CHECK (length("session_id") = 16),
  "turn_count" INTEGER NOT NULL CHECK ("turn_count" >= 0),
  "tokens_input" INTEGER NOT NULL CHECK ("tokens_input" >= 0),
  "tokens_output" INTEGER NOT NULL CHECK ("tokens_output" >= 0),
  "version" INTEGER NOT NULL CHECK ("version" >= 1),
  UNIQUE ("trajectory_id"),
  FOREIGN KEY ("parent_trajectory_id") REFERENCES "trajectory" ("trajectory_id") ON DELETE SET NULL,
  FOREIGN KEY ("session_id") REFERENCES "session" ("session_id") ON DELETE SET NULL
) STRICT;

CREATE INDEX "ix_trajectory_list_by_status" ON "trajectory" ("status", "created_at");

CREATE INDEX "ix_trajectory_list_children" ON "trajectory" ("parent_trajectory_id", "created_at") WHERE "parent_trajectory_id" IS NOT NULL;

CREATE INDEX "ix_trajectory_list_by_initiator" ON "trajectory" ("initiator_type", "initiator_id", "created_at");

CREATE INDEX "ix_trajectory_list_by_session" ON "trajectory" ("session_id", "created_at") WHERE "session_id" IS NOT NULL;

-- trajectory.insert
--   takes: ordinal, trajectory_id, status, initiator_type, initiator_id, goal_hash, created_at, updated_at, last_activity_at, goal, tags, outcome, parent_trajectory_id, session_id, turn_count, tokens_input, tokens_output, version
--   gives: ordinal
INSERT INTO "trajectory" ("ordinal", "trajectory_id", "status", "initiator_type", "initiator_id", "goal_hash", "created_at", "updated_at", "last_activity_at", "goal", "tags", "outcome", "parent_trajectory_id", "session_id", "turn_count", "tokens_input", "tokens_output", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18) RETURNING "ordinal";

-- trajectory.insert_or_ignore
--   takes: ordinal, trajectory_id, status, initiator_type, initiator_id, goal_hash, created_at, updated_at, last_activity_at, goal, tags, outcome, parent_trajectory_id, session_id, turn_count, tokens_input, tokens_output, version
--   gives: ordinal
INSERT INTO "trajectory" ("ordinal", "trajectory_id", "status", "initiator_type", "initiator_id", "goal_hash", "created_at", "updated_at", "last_activity_at", "goal", "tags", "outcome", "parent_trajectory_id", "session_id", "turn_count", "tokens_input", "tokens_output", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18) ON CONFLICT DO NOTHING RETURNING "ordinal";

-- trajectory.upsert
--   takes: ordinal, trajectory_id, status, initiator_type, initiator_id, goal_hash, created_at, updated_at, last_activity_at, goal, tags, outcome, parent_trajectory_id, session_id, turn_count, tokens_input, tokens_output, version
--   gives: ordinal
INSERT INTO "trajectory" ("ordinal", "trajectory_id", "status", "initiator_type", "initiator_id", "goal_hash", "created_at", "updated_at", "last_activity_at", "goal", "tags", "outcome", "parent_trajectory_id", "session_id", "turn_count", "tokens_input", "tokens_output", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18) ON CONFLICT ("trajectory_id") DO UPDATE SET "status" = excluded."status", "initiator_type" = excluded."initiator_type", "initiator_id" = excluded."initiator_id", "goal_hash" = excluded."goal_hash", "created_at" = excluded."created_at", "updated_at" = excluded."updated_at", "last_activity_at" = excluded."last_activity_at", "goal" = excluded."goal", "tags" = excluded."tags", "outcome" = excluded."outcome", "parent_trajectory_id" = excluded."parent_trajectory_id", "session_id" = excluded."session_id", "turn_count" = excluded."turn_count", "tokens_input" = excluded."tokens_input", "tokens_output" = excluded."tokens_output", "version" = excluded."version" RETURNING "ordinal";

-- trajectory.get
--   takes: trajectory_id
--   gives: ordinal, trajectory_id, status, initiator_type, initiator_id, goal_hash, created_at, updated_at, last_activity_at, goal, tags, outcome, parent_trajectory_id, session_id, turn_count, tokens_input, tokens_output, version
SELECT "ordinal", "trajectory_id", "status", "initiator_type", "initiator_id", "goal_hash", "created_at", "updated_at", "last_activity_at", "goal", "tags", "outcome", "parent_trajectory_id", "session_id", "turn_count", "tokens_input", "tokens_output", "version" FROM "trajectory" WHERE "trajectory_id" = ?1;

-- trajectory.update
--   takes: status, initiator_type, initiator_id, goal_hash, created_at, updated_at, last_activity_at, goal, tags, outcome, parent_trajectory_id, session_id, turn_count, tokens_input, tokens_output, version, trajectory_id, version
UPDATE "trajectory" SET "status" = ?1, "initiator_type" = ?2, "initiator_id" = ?3, "goal_hash" = ?4, "created_at" = ?5, "updated_at" = ?6, "last_activity_at" = ?7, "goal" = ?8, "tags" = ?9, "outcome" = ?10, "parent_trajectory_id" = ?11, "session_id" = ?12, "turn_count" = ?13, "tokens_input" = ?14, "tokens_output" = ?15, "version" = ?16 WHERE "trajectory_id" = ?17 AND "version" = ?18;

-- trajectory.delete
--   takes: trajectory_id
DELETE FROM "trajectory" WHERE "trajectory_id" = ?1;

-- trajectory.count
--   takes: nothing
--   gives: count
SELECT count(*) FROM "trajectory";

-- trajectory.page
--   takes: ordinal, limit
--   gives: ordinal, trajectory_id, status, initiator_type, initiator_id, goal_hash, created_at, updated_at, last_activity_at, goal, tags, outcome, parent_trajectory_id, session_id, turn_count, tokens_input, tokens_output, version
SELECT "ordinal", "trajectory_id", "status", "initiator_type", "initiator_id", "goal_hash", "created_at", "updated_at", "last_activity_at", "goal", "tags", "outcome", "parent_trajectory_id", "session_id", "turn_count", "tokens_input", "tokens_output", "version" FROM "trajectory" WHERE "ordinal" > ?1 ORDER BY "ordinal" LIMIT ?2;

-- trajectory.get_many
--   takes: ordinals
--   gives: ordinal, trajectory_id, status, initiator_type, initiator_id, goal_hash, created_at, updated_at, last_activity_at, goal, tags, outcome, parent_trajectory_id, session_id, turn_count, tokens_input, tokens_output, version
SELECT "ordinal", "trajectory_id", "status", "initiator_type", "initiator_id", "goal_hash", "created_at", "updated_at", "last_activity_at", "goal", "tags", "outcome", "parent_trajectory_id", "session_id", "turn_count", "tokens_input", "tokens_output", "version" FROM "trajectory" WHERE "ordinal" IN (SELECT value FROM json_each(?1));

-- trajectory.list_by_status
--   takes: status, limit
--   gives: ordinal, trajectory_id, status, initiator_type, initiator_id, goal_hash, created_at, updated_at, last_activity_at, goal, tags, outcome, parent_trajectory_id, session_id, turn_count, tokens_input, tokens_output, version
SELECT "ordinal", "trajectory_id", "status", "initiator_type", "initiator_id", "goal_hash", "created_at", "updated_at", "last_activity_at", "goal", "tags", "outcome", "parent_trajectory_id", "session_id", "turn_count", "tokens_input", "tokens_output", "version" FROM "trajectory" WHERE "status" = ?1 ORDER BY "created_at", "ordinal" LIMIT ?2;

-- trajectory.list_children
--   takes: parent_trajectory_id
--   gives: ordinal, trajectory_id, status, initiator_type, initiator_id, goal_hash, created_at, updated_at, last_activity_at, goal, tags, outcome, parent_trajectory_id, session_id, turn_count, tokens_input, tokens_output, version
SELECT "ordinal", "trajectory_id", "status", "initiator_type", "initiator_id", "goal_hash", "created_at", "updated_at", "last_activity_at", "goal", "tags", "outcome", "parent_trajectory_id", "session_id", "turn_count", "tokens_input", "tokens_output", "version" FROM "trajectory" WHERE "parent_trajectory_id" = ?1 AND "parent_trajectory_id" IS NOT NULL ORDER BY "created_at", "ordinal";

-- trajectory.list_by_initiator
--   takes: initiator_type, initiator_id, limit
--   gives: ordinal, trajectory_id, status, initiator_type, initiator_id, goal_hash, created_at, updated_at, last_activity_at, goal, tags, outcome, parent_trajectory_id, session_id, turn_count, tokens_input, tokens_output, version
SELECT "ordinal", "trajectory_id", "status", "initiator_type", "initiator_id", "goal_hash", "created_at", "updated_at", "last_activity_at", "goal", "tags", "outcome", "parent_trajectory_id", "session_id", "turn_count", "tokens_input", "tokens_output", "version" FROM "trajectory" WHERE "initiator_type" = ?1 AND "initiator_id" = ?2 ORDER BY "created_at", "ordinal" LIMIT ?3;

-- trajectory.list_by_session
--   takes: session_id
--   gives: ordinal, trajectory_id, status, initiator_type, initiator_id, goal_hash, created_at, updated_at, last_activity_at, goal, tags, outcome, parent_trajectory_id, session_id, turn_count, tokens_input, tokens_output, version
SELECT "ordinal", "trajectory_id", "status", "initiator_type", "initiator_id", "goal_hash", "created_at", "updated_at", "last_activity_at", "goal", "tags", "outcome", "parent_trajectory_id", "session_id", "turn_count", "tokens_input", "tokens_output", "version" FROM "trajectory" WHERE "session_id" = ?1 AND "session_id" IS NOT NULL ORDER BY "created_at", "ordinal";

-- trajectory.referring_parent_trajectory_id
--   takes: parent_trajectory_id
--   gives: ordinal, trajectory_id, status, initiator_type, initiator_id, goal_hash, created_at, updated_at, last_activity_at, goal, tags, outcome, parent_trajectory_id, session_id, turn_count, tokens_input, tokens_output, version
SELECT "ordinal", "trajectory_id", "status", "initiator_type", "initiator_id", "goal_hash", "created_at", "updated_at", "last_activity_at", "goal", "tags", "outcome", "parent_trajectory_id", "session_id", "turn_count", "tokens_input", "tokens_output", "version" FROM "trajectory" WHERE "parent_trajectory_id" = ?1 ORDER BY "ordinal";

-- trajectory.referring_session_id
--   takes: session_id
--   gives: ordinal, trajectory_id, status, initiator_type, initiator_id, goal_hash, created_at, updated_at, last_activity_at, goal, tags, outcome, parent_trajectory_id, session_id, turn_count, tokens_input, tokens_output, version
SELECT "ordinal", "trajectory_id", "status", "initiator_type", "initiator_id", "goal_hash", "created_at", "updated_at", "last_activity_at", "goal", "tags", "outcome", "parent_trajectory_id", "session_id", "turn_count", "tokens_input", "tokens_output", "version" FROM "trajectory" WHERE "session_id" = ?1 ORDER BY "ordinal";

-- ===== scope

CREATE TABLE "scope" (
  "ordinal" INTEGER PRIMARY KEY AUTOINCREMENT,
  "scope_id" BLOB NOT NULL CHECK (length("scope_id") = 16),
  "trajectory_id" BLOB NOT NULL CHECK (length("trajectory_id") = 16),
  "sequence_number" INTEGER NOT NULL CHECK ("sequence_number" >= 0),
  "start_turn" INTEGER NOT NULL CHECK ("start_turn" >= 0),
  "opened_at" INTEGER NOT NULL,
  "last_activity_at" INTEGER NOT NULL,
  "end_turn" INTEGER CHECK ("end_turn" >= 0),
  "start_turn_id" BLOB CHECK (length("start_turn_id") = 16),
  "end_turn_id" BLOB CHECK (length("end_turn_id") = 16),
  "closed_at" INTEGER,
  "summary" TEXT,
  "summary_tokens" INTEGER NOT NULL CHECK ("summary_tokens" >= 0),
  "trust" TEXT NOT NULL CHECK ("trust" IN ('system', 'user', 'tool', 'web')),
  "artifact_ids" BLOB NOT NULL CHECK (length("artifact_ids") % 16 = 0),
  "checkpoint_id" BLOB CHECK (length("checkpoint_id") = 16),
  "next_sequence" INTEGER NOT NULL CHECK ("next_sequence" >= 0),
  "turn_count" INTEGER NOT NULL CHECK ("turn_count" >= 0),
  "tokens_input" INTEGER NOT NULL CHECK ("tokens_input" >= 0),
  "tokens_output" INTEGER NOT NULL CHECK ("tokens_output" >= 0),
  "version" INTEGER NOT NULL CHECK ("version" >= 1),
  UNIQUE ("scope_id"),
  FOREIGN KEY ("trajectory_id") REFERENCES "trajectory" ("trajectory_id") ON DELETE CASCADE
) STRICT;

CREATE UNIQUE INDEX "uq_scope_trajectory_id_sequence_number" ON "scope" ("trajectory_id", "sequence_number");

-- scope.insert
--   takes: ordinal, scope_id, trajectory_id, sequence_number, start_turn, opened_at, last_activity_at, end_turn, start_turn_id, end_turn_id, closed_at, summary, summary_tokens, trust, artifact_ids, checkpoint_id, next_sequence, turn_count, tokens_input, tokens_output, version
--   gives: ordinal
INSERT INTO "scope" ("ordinal", "scope_id", "trajectory_id", "sequence_number", "start_turn", "opened_at", "last_activity_at", "end_turn", "start_turn_id", "end_turn_id", "closed_at", "summary", "summary_tokens", "trust", "artifact_ids", "checkpoint_id", "next_sequence", "turn_count", "tokens_input", "tokens_output", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21) RETURNING "ordinal";

-- scope.insert_or_ignore
--   takes: ordinal, scope_id, trajectory_id, sequence_number, start_turn, opened_at, last_activity_at, end_turn, start_turn_id, end_turn_id, closed_at, summary, summary_tokens, trust, artifact_ids, checkpoint_id, next_sequence, turn_count, tokens_input, tokens_output, version
--   gives: ordinal
INSERT INTO "scope" ("ordinal", "scope_id", "trajectory_id", "sequence_number", "start_turn", "opened_at", "last_activity_at", "end_turn", "start_turn_id", "end_turn_id", "closed_at", "summary", "summary_tokens", "trust", "artifact_ids", "checkpoint_id", "next_sequence", "turn_count", "tokens_input", "tokens_output", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21) ON CONFLICT DO NOTHING RETURNING "ordinal";

-- scope.upsert
--   takes: ordinal, scope_id, trajectory_id, sequence_number, start_turn, opened_at, last_activity_at, end_turn, start_turn_id, end_turn_id, closed_at, summary, summary_tokens, trust, artifact_ids, checkpoint_id, next_sequence, turn_count, tokens_input, tokens_output, version
--   gives: ordinal
INSERT INTO "scope" ("ordinal", "scope_id", "trajectory_id", "sequence_number", "start_turn", "opened_at", "last_activity_at", "end_turn", "start_turn_id", "end_turn_id", "closed_at", "summary", "summary_tokens", "trust", "artifact_ids", "checkpoint_id", "next_sequence", "turn_count", "tokens_input", "tokens_output", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21) ON CONFLICT ("scope_id") DO UPDATE SET "trajectory_id" = excluded."trajectory_id", "sequence_number" = excluded."sequence_number", "start_turn" = excluded."start_turn", "opened_at" = excluded."opened_at", "last_activity_at" = excluded."last_activity_at", "end_turn" = excluded."end_turn", "start_turn_id" = excluded."start_turn_id", "end_turn_id" = excluded."end_turn_id", "closed_at" = excluded."closed_at", "summary" = excluded."summary", "summary_tokens" = excluded."summary_tokens", "trust" = excluded."trust", "artifact_ids" = excluded."artifact_ids", "checkpoint_id" = excluded."checkpoint_id", "next_sequence" = excluded."next_sequence", "turn_count" = excluded."turn_count", "tokens_input" = excluded."tokens_input", "tokens_output" = excluded."tokens_output", "version" = excluded."version" RETURNING "ordinal";

-- scope.get
--   takes: scope_id
--   gives: ordinal, scope_id, trajectory_id, sequence_number, start_turn, opened_at, last_activity_at, end_turn, start_turn_id, end_turn_id, closed_at, summary, summary_tokens, trust, artifact_ids, checkpoint_id, next_sequence, turn_count, tokens_input, tokens_output, version
SELECT "ordinal", "scope_id", "trajectory_id", "sequence_number", "start_turn", "opened_at", "last_activity_at", "end_turn", "start_turn_id", "end_turn_id", "closed_at", "summary", "summary_tokens", "trust", "artifact_ids", "checkpoint_id", "next_sequence", "turn_count", "tokens_input", "tokens_output", "version" FROM "scope" WHERE "scope_id" = ?1;

-- scope.update
--   takes: trajectory_id, sequence_number, start_turn, opened_at, last_activity_at, end_turn, start_turn_id, end_turn_id, closed_at, summary, summary_tokens, trust, artifact_ids, checkpoint_id, next_sequence, turn_count, tokens_input, tokens_output, version, scope_id, version
UPDATE "scope" SET "trajectory_id" = ?1, "sequence_number" = ?2, "start_turn" = ?3, "opened_at" = ?4, "last_activity_at" = ?5, "end_turn" = ?6, "start_turn_id" = ?7, "end_turn_id" = ?8, "closed_at" = ?9, "summary" = ?10, "summary_tokens" = ?11, "trust" = ?12, "artifact_ids" = ?13, "checkpoint_id" = ?14, "next_sequence" = ?15, "turn_count" = ?16, "tokens_input" = ?17, "tokens_output" = ?18, "version" = ?19 WHERE "scope_id" = ?20 AND "version" = ?21;

-- scope.delete
--   takes: scope_id
DELETE FROM "scope" WHERE "scope_id" = ?1;

-- scope.count
--   takes: nothing
--   gives: count
SELECT count(*) FROM "scope";

-- scope.page
--   takes: ordinal, limit
--   gives: ordinal, scope_id, trajectory_id, sequence_number, start_turn, opened_at, last_activity_at, end_turn, start_turn_id, end_turn_id, closed_at, summary, summary_tokens, trust, artifact_ids, checkpoint_id, next_sequence, turn_count, tokens_input, tokens_output, version
SELECT "ordinal", "scope_id", "trajectory_id", "sequence_number", "start_turn", "opened_at", "last_activity_at", "end_turn", "start_turn_id", "end_turn_id", "closed_at", "summary", "summary_tokens", "trust", "artifact_ids", "checkpoint_id", "next_sequence", "turn_count", "tokens_input", "tokens_output", "version" FROM "scope" WHERE "ordinal" > ?1 ORDER BY "ordinal" LIMIT ?2;

-- scope.get_many
--   takes: ordinals
--   gives: ordinal, scope_id, trajectory_id, sequence_number, start_turn, opened_at, last_activity_at, end_turn, start_turn_id, end_turn_id, closed_at, summary, summary_tokens, trust, artifact_ids, checkpoint_id, next_sequence, turn_count, tokens_input, tokens_output, version
SELECT "ordinal", "scope_id", "trajectory_id", "sequence_number", "start_turn", "opened_at", "last_activity_at", "end_turn", "start_turn_id", "end_turn_id", "closed_at", "summary", "summary_tokens", "trust", "artifact_ids", "checkpoint_id", "next_sequence", "turn_count", "tokens_input", "tokens_output", "version" FROM "scope" WHERE "ordinal" IN (SELECT value FROM json_each(?1));

-- scope.list_by_trajectory
--   takes: trajectory_id
--   gives: ordinal, scope_id, trajectory_id, sequence_number, start_turn, opened_at, last_activity_at, end_turn, start_turn_id, end_turn_id, closed_at, summary, summary_tokens, trust, artifact_ids, checkpoint_id, next_sequence, turn_count, tokens_input, tokens_output, version
SELECT "ordinal", "scope_id", "trajectory_id", "sequence_number", "start_turn", "opened_at", "last_activity_at", "end_turn", "start_turn_id", "end_turn_id", "closed_at", "summary", "summary_tokens", "trust", "artifact_ids", "checkpoint_id", "next_sequence", "turn_count", "tokens_input", "tokens_output", "version" FROM "scope" WHERE "trajectory_id" = ?1 ORDER BY "sequence_number";

-- scope.list_open
--   takes: trajectory_id
--   gives: ordinal, scope_id, trajectory_id, sequence_number, start_turn, opened_at, last_activity_at, end_turn, start_turn_id, end_turn_id, closed_at, summary, summary_tokens, trust, artifact_ids, checkpoint_id, next_sequence, turn_count, tokens_input, tokens_output, version
SELECT "ordinal", "scope_id", "trajectory_id", "sequence_number", "start_turn", "opened_at", "last_activity_at", "end_turn", "start_turn_id", "end_turn_id", "closed_at", "summary", "summary_tokens", "trust", "artifact_ids", "checkpoint_id", "next_sequence", "turn_count", "tokens_input", "tokens_output", "version" FROM "scope" WHERE "trajectory_id" = ?1 AND "closed_at" IS NULL ORDER BY "sequence_number";

-- scope.referring_trajectory_id
--   takes: trajectory_id
--   gives: ordinal, scope_id, trajectory_id, sequence_number, start_turn, opened_at, last_activity_at, end_turn, start_turn_id, end_turn_id, closed_at, summary, summary_tokens, trust, artifact_ids, checkpoint_id, next_sequence, turn_count, tokens_input, tokens_output, version
SELECT "ordinal", "scope_id", "trajectory_id", "sequence_number", "start_turn", "opened_at", "last_activity_at", "end_turn", "start_turn_id", "end_turn_id", "closed_at", "summary", "summary_tokens", "trust", "artifact_ids", "checkpoint_id", "next_sequence", "turn_count", "tokens_input", "tokens_output", "version" FROM "scope" WHERE "trajectory_id" = ?1 ORDER BY "ordinal";

-- scope.by_trajectory_id_sequence_number
--   takes: trajectory_id, sequence_number
--   gives: ordinal, scope_id, trajectory_id, sequence_number, start_turn, opened_at, last_activity_at, end_turn, start_turn_id, end_turn_id, closed_at, summary, summary_tokens, trust, artifact_ids, checkpoint_id, next_sequence, turn_count, tokens_input, tokens_output, version
SELECT "ordinal", "scope_id", "trajectory_id", "sequence_number", "start_turn", "opened_at", "last_activity_at", "end_turn", "start_turn_id", "end_turn_id", "closed_at", "summary", "summary_tokens", "trust", "artifact_ids", "checkpoint_id", "next_sequence", "turn_count", "tokens_input", "tokens_output", "version" FROM "scope" WHERE "trajectory_id" = ?1 AND "sequence_number" = ?2;

-- ===== turn

CREATE TABLE "turn" (
  "ordinal" INTEGER PRIMARY KEY AUTOINCREMENT,
  "turn_id" BLOB NOT NULL CHECK (length("turn_id") = 16),
  "trajectory_id" BLOB NOT NULL CHECK (length("trajectory_id") = 16),
  "scope_id" BLOB NOT NULL CHECK (length("scope_id") = 16),
  "sequence" INTEGER NOT NULL CHECK ("sequence" >= 0),
  "turn_number" INTEGER NOT NULL CHECK ("turn_number" >= 0),
  "role" TEXT NOT NULL CHECK ("role" IN ('user', 'assistant', 'system', 'tool')),
  "trust" TEXT NOT NULL CHECK ("trust" IN ('system', 'user', 'tool', 'web')),
  "content" BLOB NOT NULL,
  "token_count" INTEGER NOT NULL CHECK ("token_count" >= 0),
  "created_at" INTEGER NOT NULL,
  "occurred_at" INTEGER,
  "name" TEXT,
  "tool_calls" TEXT NOT NULL CHECK (json_valid("tool_calls")),
  "tool_call_id" TEXT,
  "model_id" TEXT,
  "idempotency_key" TEXT,
  "version" INTEGER NOT NULL CHECK ("version" >= 1),
  UNIQUE ("turn_id"),
  FOREIGN KEY ("scope_id") REFERENCES "scope" ("scope_id") ON DELETE CASCADE,
  FOREIGN KEY ("trajectory_id") REFERENCES "trajectory" ("trajectory_id") ON DELETE CASCADE
) STRICT;

CREATE UNIQUE INDEX "uq_turn_scope_id_sequence" ON "turn" ("scope_id", "sequence");

CREATE UNIQUE INDEX "uq_turn_trajectory_id_turn_number" ON "turn" ("trajectory_id", "turn_number");

CREATE UNIQUE INDEX "uq_turn_trajectory_id_idempotency_key" ON "turn" ("trajectory_id", "idempotency_key") WHERE "idempotency_key" IS NOT NULL;

-- turn.insert
--   takes: ordinal, turn_id, trajectory_id, scope_id, sequence, turn_number, role, trust, content, token_count, created_at, occurred_at, name, tool_calls, tool_call_id, model_id, idempotency_key, version
--   gives: ordinal
INSERT INTO "turn" ("ordinal", "turn_id", "trajectory_id", "scope_id", "sequence", "turn_number", "role", "trust", "content", "token_count", "created_at", "occurred_at", "name", "tool_calls", "tool_call_id", "model_id", "idempotency_key", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18) RETURNING "ordinal";

-- turn.insert_or_ignore
--   takes: ordinal, turn_id, trajectory_id, scope_id, sequence, turn_number, role, trust, content, token_count, created_at, occurred_at, name, tool_calls, tool_call_id, model_id, idempotency_key, version
--   gives: ordinal
INSERT INTO "turn" ("ordinal", "turn_id", "trajectory_id", "scope_id", "sequence", "turn_number", "role", "trust", "content", "token_count", "created_at", "occurred_at", "name", "tool_calls", "tool_call_id", "model_id", "idempotency_key", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18) ON CONFLICT DO NOTHING RETURNING "ordinal";

-- turn.upsert
--   takes: ordinal, turn_id, trajectory_id, scope_id, sequence, turn_number, role, trust, content, token_count, created_at, occurred_at, name, tool_calls, tool_call_id, model_id, idempotency_key, version
--   gives: ordinal
INSERT INTO "turn" ("ordinal", "turn_id", "trajectory_id", "scope_id", "sequence", "turn_number", "role", "trust", "content", "token_count", "created_at", "occurred_at", "name", "tool_calls", "tool_call_id", "model_id", "idempotency_key", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18) ON CONFLICT ("turn_id") DO UPDATE SET "trajectory_id" = excluded."trajectory_id", "scope_id" = excluded."scope_id", "sequence" = excluded."sequence", "turn_number" = excluded."turn_number", "role" = excluded."role", "trust" = excluded."trust", "content" = excluded."content", "token_count" = excluded."token_count", "created_at" = excluded."created_at", "occurred_at" = excluded."occurred_at", "name" = excluded."name", "tool_calls" = excluded."tool_calls", "tool_call_id" = excluded."tool_call_id", "model_id" = excluded."model_id", "idempotency_key" = excluded."idempotency_key", "version" = excluded."version" RETURNING "ordinal";

-- turn.get
--   takes: turn_id
--   gives: ordinal, turn_id, trajectory_id, scope_id, sequence, turn_number, role, trust, content, token_count, created_at, occurred_at, name, tool_calls, tool_call_id, model_id, idempotency_key, version
SELECT "ordinal", "turn_id", "trajectory_id", "scope_id", "sequence", "turn_number", "role", "trust", "content", "token_count", "created_at", "occurred_at", "name", "tool_calls", "tool_call_id", "model_id", "idempotency_key", "version" FROM "turn" WHERE "turn_id" = ?1;

-- turn.update
--   takes: trajectory_id, scope_id, sequence, turn_number, role, trust, content, token_count, created_at, occurred_at, name, tool_calls, tool_call_id, model_id, idempotency_key, version, turn_id, version
UPDATE "turn" SET "trajectory_id" = ?1, "scope_id" = ?2, "sequence" = ?3, "turn_number" = ?4, "role" = ?5, "trust" = ?6, "content" = ?7, "token_count" = ?8, "created_at" = ?9, "occurred_at" = ?10, "name" = ?11, "tool_calls" = ?12, "tool_call_id" = ?13, "model_id" = ?14, "idempotency_key" = ?15, "version" = ?16 WHERE "turn_id" = ?17 AND "version" = ?18;

-- turn.delete
--   takes: turn_id
DELETE FROM "turn" WHERE "turn_id" = ?1;

-- turn.count
--   takes: nothing
--   gives: count
SELECT count(*) FROM "turn";

-- turn.page
--   takes: ordinal, limit
--   gives: ordinal, turn_id, trajectory_id, scope_id, sequence, turn_number, role, trust, content, token_count, created_at, occurred_at, name, tool_calls, tool_call_id, model_id, idempotency_key, version
SELECT "ordinal", "turn_id", "trajectory_id", "scope_id", "sequence", "turn_number", "role", "trust", "content", "token_count", "created_at", "occurred_at", "name", "tool_calls", "tool_call_id", "model_id", "idempotency_key", "version" FROM "turn" WHERE "ordinal" > ?1 ORDER BY "ordinal" LIMIT ?2;

-- turn.get_many
--   takes: ordinals
--   gives: ordinal, turn_id, trajectory_id, scope_id, sequence, turn_number, role, trust, content, token_count, created_at, occurred_at, name, tool_calls, tool_call_id, model_id, idempotency_key, version
SELECT "ordinal", "turn_id", "trajectory_id", "scope_id", "sequence", "turn_number", "role", "trust", "content", "token_count", "created_at", "occurred_at", "name", "tool_calls", "tool_call_id", "model_id", "idempotency_key", "version" FROM "turn" WHERE "ordinal" IN (SELECT value FROM json_each(?1));

-- turn.list_by_scope
--   takes: scope_id
--   gives: ordinal, turn_id, trajectory_id, scope_id, sequence, turn_number, role, trust, content, token_count, created_at, occurred_at, name, tool_calls, tool_call_id, model_id, idempotency_key, version
SELECT "ordinal", "turn_id", "trajectory_id", "scope_id", "sequence", "turn_number", "role", "trust", "content", "token_count", "created_at", "occurred_at", "name", "tool_calls", "tool_call_id", "model_id", "idempotency_key", "version" FROM "turn" WHERE "scope_id" = ?1 ORDER BY "sequence";

-- turn.referring_scope_id
--   takes: scope_id
--   gives: ordinal, turn_id, trajectory_id, scope_id, sequence, turn_number, role, trust, content, token_count, created_at, occurred_at, name, tool_calls, tool_call_id, model_id, idempotency_key, version
SELECT "ordinal", "turn_id", "trajectory_id", "scope_id", "sequence", "turn_number", "role", "trust", "content", "token_count", "created_at", "occurred_at", "name", "tool_calls", "tool_call_id", "model_id", "idempotency_key", "version" FROM "turn" WHERE "scope_id" = ?1 ORDER BY "ordinal";

-- turn.referring_trajectory_id
--   takes: trajectory_id
--   gives: ordinal, turn_id, trajectory_id, scope_id, sequence, turn_number, role, trust, content, token_count, created_at, occurred_at, name, tool_calls, tool_call_id, model_id, idempotency_key, version
SELECT "ordinal", "turn_id", "trajectory_id", "scope_id", "sequence", "turn_number", "role", "trust", "content", "token_count", "created_at", "occurred_at", "name", "tool_calls", "tool_call_id", "model_id", "idempotency_key", "version" FROM "turn" WHERE "trajectory_id" = ?1 ORDER BY "ordinal";

-- turn.by_scope_id_sequence
--   takes: scope_id, sequence
--   gives: ordinal, turn_id, trajectory_id, scope_id, sequence, turn_number, role, trust, content, token_count, created_at, occurred_at, name, tool_calls, tool_call_id, model_id, idempotency_key, version
SELECT "ordinal", "turn_id", "trajectory_id", "scope_id", "sequence", "turn_number", "role", "trust", "content", "token_count", "created_at", "occurred_at", "name", "tool_calls", "tool_call_id", "model_id", "idempotency_key", "version" FROM "turn" WHERE "scope_id" = ?1 AND "sequence" = ?2;

-- turn.by_trajectory_id_turn_number
--   takes: trajectory_id, turn_number
--   gives: ordinal, turn_id, trajectory_id, scope_id, sequence, turn_number, role, trust, content, token_count, created_at, occurred_at, name, tool_calls, tool_call_id, model_id, idempotency_key, version
SELECT "ordinal", "turn_id", "trajectory_id", "scope_id", "sequence", "turn_number", "role", "trust", "content", "token_count", "created_at", "occurred_at", "name", "tool_calls", "tool_call_id", "model_id", "idempotency_key", "version" FROM "turn" WHERE "trajectory_id" = ?1 AND "turn_number" = ?2;

-- turn.by_trajectory_id_idempotency_key
--   takes: trajectory_id, idempotency_key
--   gives: ordinal, turn_id, trajectory_id, scope_id, sequence, turn_number, role, trust, content, token_count, created_at, occurred_at, name, tool_calls, tool_call_id, model_id, idempotency_key, version
SELECT "ordinal", "turn_id", "trajectory_id", "scope_id", "sequence", "turn_number", "role", "trust", "content", "token_count", "created_at", "occurred_at", "name", "tool_calls", "tool_call_id", "model_id", "idempotency_key", "version" FROM "turn" WHERE "trajectory_id" = ?1 AND "idempotency_key" = ?2 AND "idempotency_key" IS NOT NULL;

-- turn.expired
--   takes: created_until, limit
--   gives: turn_id
SELECT "turn_id" FROM "turn" WHERE "created_at" <= ?1 AND TRUE ORDER BY "ordinal" LIMIT ?2;

-- turn.stale
--   takes: created_until, confidence_below
--   gives: ordinal, turn_id, trajectory_id, scope_id, sequence, turn_number, role, trust, content, token_count, created_at, occurred_at, name, tool_calls, tool_call_id, model_id, idempotency_key, version
SELECT "ordinal", "turn_id", "trajectory_id", "scope_id", "sequence", "turn_number", "role", "trust", "content", "token_count", "created_at", "occurred_at", "name", "tool_calls", "tool_call_id", "model_id", "idempotency_key", "version" FROM "turn" WHERE "created_at" <= ?1 AND 1 < CAST(?2 AS DOUBLE PRECISION) AND TRUE ORDER BY "ordinal";

-- turn.surplus
--   takes: keep, limit
--   gives: turn_id
SELECT "turn_id" FROM (SELECT "turn_id", "ordinal", row_number() OVER (ORDER BY "created_at" DESC, "ordinal" DESC) AS place FROM "turn" WHERE TRUE) AS ranked WHERE place > ?1 ORDER BY "ordinal" LIMIT ?2;

-- turn.surplus_by_trajectory
--   takes: keep, limit
--   gives: turn_id
SELECT "turn_id" FROM (SELECT "turn_id", "ordinal", row_number() OVER (PARTITION BY "trajectory_id" ORDER BY "created_at" DESC, "ordinal" DESC) AS place FROM "turn" WHERE TRUE) AS ranked WHERE place > ?1 ORDER BY "ordinal" LIMIT ?2;

-- ===== turn_summary

CREATE TABLE "turn_summary" (
  "ordinal" INTEGER PRIMARY KEY AUTOINCREMENT,
  "turn_summary_id" BLOB NOT NULL CHECK (length("turn_summary_id") = 16),
  "trajectory_id" BLOB NOT NULL CHECK (length("trajectory_id") = 16),
  "scope_id" BLOB NOT NULL CHECK (length("scope_id") = 16),
  "first_turn" INTEGER NOT NULL CHECK ("first_turn" >= 0),
  "last_turn" INTEGER NOT NULL CHECK ("last_turn" >= 0),
  "content" TEXT NOT NULL,
  "token_count" INTEGER NOT NULL CHECK ("token_count" >= 0),
  "trust" TEXT NOT NULL CHECK ("trust" IN ('system', 'user', 'tool', 'web')),
  "source_turns" BLOB NOT NULL CHECK (length("source_turns") % 16 = 0),
  "model_id" TEXT NOT NULL,
  "created_at" INTEGER NOT NULL,
  "version" INTEGER NOT NULL CHECK ("version" >= 1),
  UNIQUE ("turn_summary_id"),
  FOREIGN KEY ("scope_id") REFERENCES "scope" ("scope_id") ON DELETE CASCADE,
  FOREIGN KEY ("trajectory_id") REFERENCES "trajectory" ("trajectory_id") ON DELETE CASCADE
) STRICT;

CREATE UNIQUE INDEX "uq_turn_summary_scope_id_first_turn" ON "turn_summary" ("scope_id", "first_turn");

CREATE INDEX "ix_turn_summary_list_by_trajectory" ON "turn_summary" ("trajectory_id", "first_turn");

-- turn_summary.insert
--   takes: ordinal, turn_summary_id, trajectory_id, scope_id, first_turn, last_turn, content, token_count, trust, source_turns, model_id, created_at, version
--   gives: ordinal
INSERT INTO "turn_summary" ("ordinal", "turn_summary_id", "trajectory_id", "scope_id", "first_turn", "last_turn", "content", "token_count", "trust", "source_turns", "model_id", "created_at", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13) RETURNING "ordinal";

-- turn_summary.insert_or_ignore
--   takes: ordinal, turn_summary_id, trajectory_id, scope_id, first_turn, last_turn, content, token_count, trust, source_turns, model_id, created_at, version
--   gives: ordinal
INSERT INTO "turn_summary" ("ordinal", "turn_summary_id", "trajectory_id", "scope_id", "first_turn", "last_turn", "content", "token_count", "trust", "source_turns", "model_id", "created_at", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13) ON CONFLICT DO NOTHING RETURNING "ordinal";

-- turn_summary.upsert
--   takes: ordinal, turn_summary_id, trajectory_id, scope_id, first_turn, last_turn, content, token_count, trust, source_turns, model_id, created_at, version
--   gives: ordinal
INSERT INTO "turn_summary" ("ordinal", "turn_summary_id", "trajectory_id", "scope_id", "first_turn", "last_turn", "content", "token_count", "trust", "source_turns", "model_id", "created_at", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13) ON CONFLICT ("turn_summary_id") DO UPDATE SET "trajectory_id" = excluded."trajectory_id", "scope_id" = excluded."scope_id", "first_turn" = excluded."first_turn", "last_turn" = excluded."last_turn", "content" = excluded."content", "token_count" = excluded."token_count", "trust" = excluded."trust", "source_turns" = excluded."source_turns", "model_id" = excluded."model_id", "created_at" = excluded."created_at", "version" = excluded."version" RETURNING "ordinal";

-- turn_summary.get
--   takes: turn_summary_id
--   gives: ordinal, turn_summary_id, trajectory_id, scope_id, first_turn, last_turn, content, token_count, trust, source_turns, model_id, created_at, version
SELECT "ordinal", "turn_summary_id", "trajectory_id", "scope_id", "first_turn", "last_turn", "content", "token_count", "trust", "source_turns", "model_id", "created_at", "version" FROM "turn_summary" WHERE "turn_summary_id" = ?1;

-- turn_summary.update
--   takes: trajectory_id, scope_id, first_turn, last_turn, content, token_count, trust, source_turns, model_id, created_at, version, turn_summary_id, version
UPDATE "turn_summary" SET "trajectory_id" = ?1, "scope_id" = ?2, "first_turn" = ?3, "last_turn" = ?4, "content" = ?5, "token_count" = ?6, "trust" = ?7, "source_turns" = ?8, "model_id" = ?9, "created_at" = ?10, "version" = ?11 WHERE "turn_summary_id" = ?12 AND "version" = ?13;

-- turn_summary.delete
--   takes: turn_summary_id
DELETE FROM "turn_summary" WHERE "turn_summary_id" = ?1;

-- turn_summary.count
--   takes: nothing
--   gives: count
SELECT count(*) FROM "turn_summary";

-- turn_summary.page
--   takes: ordinal, limit
--   gives: ordinal, turn_summary_id, trajectory_id, scope_id, first_turn, last_turn, content, token_count, trust, source_turns, model_id, created_at, version
SELECT "ordinal", "turn_summary_id", "trajectory_id", "scope_id", "first_turn", "last_turn", "content", "token_count", "trust", "source_turns", "model_id", "created_at", "version" FROM "turn_summary" WHERE "ordinal" > ?1 ORDER BY "ordinal" LIMIT ?2;

-- turn_summary.get_many
--   takes: ordinals
--   gives: ordinal, turn_summary_id, trajectory_id, scope_id, first_turn, last_turn, content, token_count, trust, source_turns, model_id, created_at, version
SELECT "ordinal", "turn_summary_id", "trajectory_id", "scope_id", "first_turn", "last_turn", "content", "token_count", "trust", "source_turns", "model_id", "created_at", "version" FROM "turn_summary" WHERE "ordinal" IN (SELECT value FROM json_each(?1));

-- turn_summary.list_by_scope
--   takes: scope_id
--   gives: ordinal, turn_summary_id, trajectory_id, scope_id, first_turn, last_turn, content, token_count, trust, source_turns, model_id, created_at, version
SELECT "ordinal", "turn_summary_id", "trajectory_id", "scope_id", "first_turn", "last_turn", "content", "token_count", "trust", "source_turns", "model_id", "created_at", "version" FROM "turn_summary" WHERE "scope_id" = ?1 ORDER BY "first_turn";

-- turn_summary.list_by_trajectory
--   takes: trajectory_id
--   gives: ordinal, turn_summary_id, trajectory_id, scope_id, first_turn, last_turn, content, token_count, trust, source_turns, model_id, created_at, version
SELECT "ordinal", "turn_summary_id", "trajectory_id", "scope_id", "first_turn", "last_turn", "content", "token_count", "trust", "source_turns", "model_id", "created_at", "version" FROM "turn_summary" WHERE "trajectory_id" = ?1 ORDER BY "first_turn";

-- turn_summary.referring_scope_id
--   takes: scope_id
--   gives: ordinal, turn_summary_id, trajectory_id, scope_id, first_turn, last_turn, content, token_count, trust, source_turns, model_id, created_at, version
SELECT "ordinal", "turn_summary_id", "trajectory_id", "scope_id", "first_turn", "last_turn", "content", "token_count", "trust", "source_turns", "model_id", "created_at", "version" FROM "turn_summary" WHERE "scope_id" = ?1 ORDER BY "ordinal";

-- turn_summary.referring_trajectory_id
--   takes: trajectory_id
--   gives: ordinal, turn_summary_id, trajectory_id, scope_id, first_turn, last_turn, content, token_count, trust, source_turns, model_id, created_at, version
SELECT "ordinal", "turn_summary_id", "trajectory_id", "scope_id", "first_turn", "last_turn", "content", "token_count", "trust", "source_turns", "model_id", "created_at", "version" FROM "turn_summary" WHERE "trajectory_id" = ?1 ORDER BY "ordinal";

-- turn_summary.by_scope_id_first_turn
--   takes: scope_id, first_turn
--   gives: ordinal, turn_summary_id, trajectory_id, scope_id, first_turn, last_turn, content, token_count, trust, source_turns, model_id, created_at, version
SELECT "ordinal", "turn_summary_id", "trajectory_id", "scope_id", "first_turn", "last_turn", "content", "token_count", "trust", "source_turns", "model_id", "created_at", "version" FROM "turn_summary" WHERE "scope_id" = ?1 AND "first_turn" = ?2;

-- ===== artifact

CREATE TABLE "artifact" (
  "ordinal" INTEGER PRIMARY KEY AUTOINCREMENT,
  "artifact_id" BLOB NOT NULL CHECK (length("artifact_id") = 16),
  "trajectory_id" BLOB NOT NULL CHECK (length("trajectory_id") = 16),
  "scope_id" BLOB NOT NULL CHECK (length("scope_id") = 16),
  "artifact_type" TEXT NOT NULL CHECK ("artifact_type" IN ('error_log', 'code_patch', 'design_decision', 'user_preference', 'fact', 'constraint', 'tool_result', 'intermediate_output', 'custom')),
  "schema_version" TEXT NOT NULL,
  "content" BLOB NOT NULL,
  "content_hash" BLOB NOT NULL CHECK (length("content_hash") = 32),
  "extraction_method" TEXT NOT NULL CHECK ("extraction_method" IN ('explicit', 'inferred', 'user_provided')),
  "trust" TEXT NOT NULL CHECK ("trust" IN ('system', 'user', 'tool', 'web')),
  "ttl_kind" TEXT NOT NULL CHECK ("ttl_kind" IN ('persistent', 'session', 'scope', 'duration')),
  "ttl_ms" INTEGER CHECK ("ttl_ms" >= 1),
  "token_count" INTEGER NOT NULL CHECK ("token_count" >= 0),
  "created_at" INTEGER NOT NULL,
  "updated_at" INTEGER NOT NULL,
  "confidence" REAL CHECK ("confidence" >= 0) CHECK ("confidence" <= 1),
  "source_turn" INTEGER CHECK ("source_turn" >= 0),
  "session_id" BLOB CHECK (length("session_id") = 16),
  "expires_at" INTEGER,
  "superseded_by" BLOB CHECK (length("superseded_by") = 16),
  "rolled_back_at" INTEGER,
  "retired_at" INTEGER,
  "occurred_at" INTEGER,
  "idempotency_key" TEXT,
  "version" INTEGER NOT NULL CHECK ("version" >= 1),
  UNIQUE ("artifact_id"),
  FOREIGN KEY ("scope_id") REFERENCES "scope" ("scope_id") ON DELETE CASCADE,
  FOREIGN KEY ("trajectory_id") REFERENCES "trajectory" ("trajectory_id") ON DELETE CASCADE,
  FOREIGN KEY ("session_id") REFERENCES "session" ("session_id") ON DELETE SET NULL,
  FOREIGN KEY ("superseded_by") REFERENCES "artifact" ("artifact_id") ON DELETE SET NULL
) STRICT;

CREATE UNIQUE INDEX "uq_artifact_trajectory_id_content_hash_artifact_type_trust" ON "artifact" ("trajectory_id", "content_hash", "artifact_type", "trust") WHERE "superseded_by" IS NULL AND "rolled_back_at" IS NULL AND "retired_at" IS NULL;

CREATE UNIQUE INDEX "uq_artifact_trajectory_id_idempotency_key" ON "artifact" ("trajectory_id", "idempotency_key") WHERE "idempotency_key" IS NOT NULL;

CREATE INDEX "ix_artifact_list_by_trajectory" ON "artifact" ("trajectory_id", "created_at");

CREATE INDEX "ix_artifact_list_by_scope" ON "artifact" ("scope_id", "created_at");

CREATE INDEX "ix_artifact_list_by_type" ON "artifact" ("trajectory_id", "artifact_type", "created_at");

CREATE INDEX "ix_artifact_list_by_hash" ON "artifact" ("trajectory_id", "content_hash", "created_at");

CREATE INDEX "ix_artifact_list_by_session" ON "artifact" ("session_id", "created_at") WHERE "session_id" IS NOT NULL;

CREATE INDEX "ix_artifact_list_superseded_by" ON "artifact" ("superseded_by", "created_at") WHERE "superseded_by" IS NOT NULL;

-- artifact.insert
--   takes: ordinal, artifact_id, trajectory_id, scope_id, artifact_type, schema_version, content, content_hash, extraction_method, trust, ttl_kind, ttl_ms, token_count, created_at, updated_at, confidence, source_turn, session_id, expires_at, superseded_by, rolled_back_at, retired_at, occurred_at, idempotency_key, version
--   gives: ordinal
INSERT INTO "artifact" ("ordinal", "artifact_id", "trajectory_id", "scope_id", "artifact_type", "schema_version", "content", "content_hash", "extraction_method", "trust", "ttl_kind", "ttl_ms", "token_count", "created_at", "updated_at", "confidence", "source_turn", "session_id", "expires_at", "superseded_by", "rolled_back_at", "retired_at", "occurred_at", "idempotency_key", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25) RETURNING "ordinal";

-- artifact.insert_or_ignore
--   takes: ordinal, artifact_id, trajectory_id, scope_id, artifact_type, schema_version, content, content_hash, extraction_method, trust, ttl_kind, ttl_ms, token_count, created_at, updated_at, confidence, source_turn, session_id, expires_at, superseded_by, rolled_back_at, retired_at, occurred_at, idempotency_key, version
--   gives: ordinal
INSERT INTO "artifact" ("ordinal", "artifact_id", "trajectory_id", "scope_id", "artifact_type", "schema_version", "content", "content_hash", "extraction_method", "trust", "ttl_kind", "ttl_ms", "token_count", "created_at", "updated_at", "confidence", "source_turn", "session_id", "expires_at", "superseded_by", "rolled_back_at", "retired_at", "occurred_at", "idempotency_key", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25) ON CONFLICT DO NOTHING RETURNING "ordinal";

-- artifact.upsert
--   takes: ordinal, artifact_id, trajectory_id, scope_id, artifact_type, schema_version, content, content_hash, extraction_method, trust, ttl_kind, ttl_ms, token_count, created_at, updated_at, confidence, source_turn, session_id, expires_at, superseded_by, rolled_back_at, retired_at, occurred_at, idempotency_key, version
--   gives: ordinal
INSERT INTO "artifact" ("ordinal", "artifact_id", "trajectory_id", "scope_id", "artifact_type", "schema_version", "content", "content_hash", "extraction_method", "trust", "ttl_kind", "ttl_ms", "token_count", "created_at", "updated_at", "confidence", "source_turn", "session_id", "expires_at", "superseded_by", "rolled_back_at", "retired_at", "occurred_at", "idempotency_key", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25) ON CONFLICT ("artifact_id") DO UPDATE SET "trajectory_id" = excluded."trajectory_id", "scope_id" = excluded."scope_id", "artifact_type" = excluded."artifact_type", "schema_version" = excluded."schema_version", "content" = excluded."content", "content_hash" = excluded."content_hash", "extraction_method" = excluded."extraction_method", "trust" = excluded."trust", "ttl_kind" = excluded."ttl_kind", "ttl_ms" = excluded."ttl_ms", "token_count" = excluded."token_count", "created_at" = excluded."created_at", "updated_at" = excluded."updated_at", "confidence" = excluded."confidence", "source_turn" = excluded."source_turn", "session_id" = excluded."session_id", "expires_at" = excluded."expires_at", "superseded_by" = excluded."superseded_by", "rolled_back_at" = excluded."rolled_back_at", "retired_at" = excluded."retired_at", "occurred_at" = excluded."occurred_at", "idempotency_key" = excluded."idempotency_key", "version" = excluded."version" RETURNING "ordinal";

-- artifact.get
--   takes: artifact_id
--   gives: ordinal, artifact_id, trajectory_id, scope_id, artifact_type, schema_version, content, content_hash, extraction_method, trust, ttl_kind, ttl_ms, token_count, created_at, updated_at, confidence, source_turn, session_id, expires_at, superseded_by, rolled_back_at, retired_at, occurred_at, idempotency_key, version
SELECT "ordinal", "artifact_id", "trajectory_id", "scope_id", "artifact_type", "schema_version", "content", "content_hash", "extraction_method", "trust", "ttl_kind", "ttl_ms", "token_count", "created_at", "updated_at", "confidence", "source_turn", "session_id", "expires_at", "superseded_by", "rolled_back_at", "retired_at", "occurred_at", "idempotency_key", "version" FROM "artifact" WHERE "artifact_id" = ?1;

-- artifact.update
--   takes: trajectory_id, scope_id, artifact_type, schema_version, content, content_hash, extraction_method, trust, ttl_kind, ttl_ms, token_count, created_at, updated_at, confidence, source_turn, session_id, expires_at, superseded_by, rolled_back_at, retired_at, occurred_at, idempotency_key, version, artifact_id, version
UPDATE "artifact" SET "trajectory_id" = ?1, "scope_id" = ?2, "artifact_type" = ?3, "schema_version" = ?4, "content" = ?5, "content_hash" = ?6, "extraction_method" = ?7, "trust" = ?8, "ttl_kind" = ?9, "ttl_ms" = ?10, "token_count" = ?11, "created_at" = ?12, "updated_at" = ?13, "confidence" = ?14, "source_turn" = ?15, "session_id" = ?16, "expires_at" = ?17, "superseded_by" = ?18, "rolled_back_at" = ?19, "retired_at" = ?20, "occurred_at" = ?21, "idempotency_key" = ?22, "version" = ?23 WHERE "artifact_id" = ?24 AND "version" = ?25;

-- artifact.delete
--   takes: artifact_id
DELETE FROM "artifact" WHERE "artifact_id" = ?1;

-- artifact.count
--   takes: nothing
--   gives: count
SELECT count(*) FROM "artifact";

-- artifact.page
--   takes: ordinal, limit
--   gives: ordinal, artifact_id, trajectory_id, scope_id, artifact_type, schema_version, content, content_hash, extraction_method, trust, ttl_kind, ttl_ms, token_count, created_at, updated_at, confidence, source_turn, session_id, expires_at, superseded_by, rolled_back_at, retired_at, occurred_at, idempotency_key, version
SELECT "ordinal", "artifact_id", "trajectory_id", "scope_id", "artifact_type", "schema_version", "content", "content_hash", "extraction_method", "trust", "ttl_kind", "ttl_ms", "token_count", "created_at", "updated_at", "confidence", "source_turn", "session_id", "expires_at", "superseded_by", "rolled_back_at", "retired_at", "occurred_at", "idempotency_key", "version" FROM "artifact" WHERE "ordinal" > ?1 ORDER BY "ordinal" LIMIT ?2;

-- artifact.get_many
--   takes: ordinals
--   gives: ordinal, artifact_id, trajectory_id, scope_id, artifact_type, schema_version, content, content_hash, extraction_method, trust, ttl_kind, ttl_ms, token_count, created_at, updated_at, confidence, source_turn, session_id, expires_at, superseded_by, rolled_back_at, retired_at, occurred_at, idempotency_key, version
SELECT "ordinal", "artifact_id", "trajectory_id", "scope_id", "artifact_type", "schema_version", "content", "content_hash", "extraction_method", "trust", "ttl_kind", "ttl_ms", "token_count", "created_at", "updated_at", "confidence", "source_turn", "session_id", "expires_at", "superseded_by", "rolled_back_at", "retired_at", "occurred_at", "idempotency_key", "version" FROM "artifact" WHERE "ordinal" IN (SELECT value FROM json_each(?1));

-- artifact.list_by_trajectory
--   takes: trajectory_id
--   gives: ordinal, artifact_id, trajectory_id, scope_id, artifact_type, schema_version, content, content_hash, extraction_method, trust, ttl_kind, ttl_ms, token_count, created_at, updated_at, confidence, source_turn, session_id, expires_at, superseded_by, rolled_back_at, retired_at, occurred_at, idempotency_key, version
SELECT "ordinal", "artifact_id", "trajectory_id", "scope_id", "artifact_type", "schema_version", "content", "content_hash", "extraction_method", "trust", "ttl_kind", "ttl_ms", "token_count", "created_at", "updated_at", "confidence", "source_turn", "session_id", "expires_at", "superseded_by", "rolled_back_at", "retired_at", "occurred_at", "idempotency_key", "version" FROM "artifact" WHERE "trajectory_id" = ?1 ORDER BY "created_at", "ordinal";

-- artifact.list_by_scope
--   takes: scope_id
--   gives: ordinal, artifact_id, trajectory_id, scope_id, artifact_type, schema_version, content, content_hash, extraction_method, trust, ttl_kind, ttl_ms, token_count, created_at, updated_at, confidence, source_turn, session_id, expires_at, superseded_by, rolled_back_at, retired_at, occurred_at, idempotency_key, version
SELECT "ordinal", "artifact_id", "trajectory_id", "scope_id", "artifact_type", "schema_version", "content", "content_hash", "extraction_method", "trust", "ttl_kind", "ttl_ms", "token_count", "created_at", "updated_at", "confidence", "source_turn", "session_id", "expires_at", "superseded_by", "rolled_back_at", "retired_at", "occurred_at", "idempotency_key", "version" FROM "artifact" WHERE "scope_id" = ?1 ORDER BY "created_at", "ordinal";

-- artifact.list_by_type
--   takes: trajectory_id, artifact_type
--   gives: ordinal, artifact_id, trajectory_id, scope_id, artifact_type, schema_version, content, content_hash, extraction_method, trust, ttl_kind, ttl_ms, token_count, created_at, updated_at, confidence, source_turn, session_id, expires_at, superseded_by, rolled_back_at, retired_at, occurred_at, idempotency_key, version
SELECT "ordinal", "artifact_id", "trajectory_id", "scope_id", "artifact_type", "schema_version", "content", "content_hash", "extraction_method", "trust", "ttl_kind", "ttl_ms", "token_count", "created_at", "updated_at", "confidence", "source_turn", "session_id", "expires_at", "superseded_by", "rolled_back_at", "retired_at", "occurred_at", "idempotency_key", "version" FROM "artifact" WHERE "trajectory_id" = ?1 AND "artifact_type" = ?2 ORDER BY "created_at", "ordinal";

-- artifact.list_by_hash
--   takes: trajectory_id, content_hash
--   gives: ordinal, artifact_id, trajectory_id, scope_id, artifact_type, schema_version, content, content_hash, extraction_method, trust, ttl_kind, ttl_ms, token_count, created_at, updated_at, confidence, source_turn, session_id, expires_at, superseded_by, rolled_back_at, retired_at, occurred_at, idempotency_key, version
SELECT "ordinal", "artifact_id", "trajectory_id", "scope_id", "artifact_type", "schema_version", "content", "content_hash", "extraction_method", "trust", "ttl_kind", "ttl_ms", "token_count", "created_at", "updated_at", "confidence", "source_turn", "session_id", "expires_at", "superseded_by", "rolled_back_at", "retired_at", "occurred_at", "idempotency_key", "version" FROM "artifact" WHERE "trajectory_id" = ?1 AND "content_hash" = ?2 ORDER BY "created_at", "ordinal";

-- artifact.list_by_session
--   takes: session_id
--   gives: ordinal, artifact_id, trajectory_id, scope_id, artifact_type, schema_version, content, content_hash, extraction_method, trust, ttl_kind, ttl_ms, token_count, created_at, updated_at, confidence, source_turn, session_id, expires_at, superseded_by, rolled_back_at, retired_at, occurred_at, idempotency_key, version
SELECT "ordinal", "artifact_id", "trajectory_id", "scope_id", "artifact_type", "schema_version", "content", "content_hash", "extraction_method", "trust", "ttl_kind", "ttl_ms", "token_count", "created_at", "updated_at", "confidence", "source_turn", "session_id", "expires_at", "superseded_by", "rolled_back_at", "retired_at", "occurred_at", "idempotency_key", "version" FROM "artifact" WHERE "session_id" = ?1 AND "session_id" IS NOT NULL ORDER BY "created_at", "ordinal";

-- artifact.list_superseded_by
--   takes: superseded_by
--   gives: ordinal, artifact_id, trajectory_id, scope_id, artifact_type, schema_version, content, content_hash, extraction_method, trust, ttl_kind, ttl_ms, token_count, created_at, updated_at, confidence, source_turn, session_id, expires_at, superseded_by, rolled_back_at, retired_at, occurred_at, idempotency_key, version
SELECT "ordinal", "artifact_id", "trajectory_id", "scope_id", "artifact_type", "schema_version", "content", "content_hash", "extraction_method", "trust", "ttl_kind", "ttl_ms", "token_count", "created_at", "updated_at", "confidence", "source_turn", "session_id", "expires_at", "superseded_by", "rolled_back_at", "retired_at", "occurred_at", "idempotency_key", "version" FROM "artifact" WHERE "superseded_by" = ?1 AND "superseded_by" IS NOT NULL ORDER BY "created_at", "ordinal";

-- artifact.referring_scope_id
--   takes: scope_id
--   gives: ordinal, artifact_id, trajectory_id, scope_id, artifact_type, schema_version, content, content_hash, extraction_method, trust, ttl_kind, ttl_ms, token_count, created_at, updated_at, confidence, source_turn, session_id, expires_at, superseded_by, rolled_back_at, retired_at, occurred_at, idempotency_key, version
SELECT "ordinal", "artifact_id", "trajectory_id", "scope_id", "artifact_type", "schema_version", "content", "content_hash", "extraction_method", "trust", "ttl_kind", "ttl_ms", "token_count", "created_at", "updated_at", "confidence", "source_turn", "session_id", "expires_at", "superseded_by", "rolled_back_at", "retired_at", "occurred_at", "idempotency_key", "version" FROM "artifact" WHERE "scope_id" = ?1 ORDER BY "ordinal";

-- artifact.referring_trajectory_id
--   takes: trajectory_id
--   gives: ordinal, artifact_id, trajectory_id, scope_id, artifact_type, schema_version, content, content_hash, extraction_method, trust, ttl_kind, ttl_ms, token_count, created_at, updated_at, confidence, source_turn, session_id, expires_at, superseded_by, rolled_back_at, retired_at, occurred_at, idempotency_key, version
SELECT "ordinal", "artifact_id", "trajectory_id", "scope_id", "artifact_type", "schema_version", "content", "content_hash", "extraction_method", "trust", "ttl_kind", "ttl_ms", "token_count", "created_at", "updated_at", "confidence", "source_turn", "session_id", "expires_at", "superseded_by", "rolled_back_at", "retired_at", "occurred_at", "idempotency_key", "version" FROM "artifact" WHERE "trajectory_id" = ?1 ORDER BY "ordinal";

-- artifact.referring_session_id
--   takes: session_id
--   gives: ordinal, artifact_id, trajectory_id, scope_id, artifact_type, schema_version, content, content_hash, extraction_method, trust, ttl_kind, ttl_ms, token_count, created_at, updated_at, confidence, source_turn, session_id, expires_at, superseded_by, rolled_back_at, retired_at, occurred_at, idempotency_key, version
SELECT "ordinal", "artifact_id", "trajectory_id", "scope_id", "artifact_type", "schema_version", "content", "content_hash", "extraction_method", "trust", "ttl_kind", "ttl_ms", "token_count", "created_at", "updated_at", "confidence", "source_turn", "session_id", "expires_at", "superseded_by", "rolled_back_at", "retired_at", "occurred_at", "idempotency_key", "version" FROM "artifact" WHERE "session_id" = ?1 ORDER BY "ordinal";

-- artifact.referring_superseded_by
--   takes: superseded_by
--   gives: ordinal, artifact_id, trajectory_id, scope_id, artifact_type, schema_version, content, content_hash, extraction_method, trust, ttl_kind, ttl_ms, token_count, created_at, updated_at, confidence, source_turn, session_id, expires_at, superseded_by, rolled_back_at, retired_at, occurred_at, idempotency_key, version
SELECT "ordinal", "artifact_id", "trajectory_id", "scope_id", "artifact_type", "schema_version", "content", "content_hash", "extraction_method", "trust", "ttl_kind", "ttl_ms", "token_count", "created_at", "updated_at", "confidence", "source_turn", "session_id", "expires_at", "superseded_by", "rolled_back_at", "retired_at", "occurred_at", "idempotency_key", "version" FROM "artifact" WHERE "superseded_by" = ?1 ORDER BY "ordinal";

-- artifact.by_trajectory_id_content_hash_artifact_type_trust
--   takes: trajectory_id, content_hash, artifact_type, trust
--   gives: ordinal, artifact_id, trajectory_id, scope_id, artifact_type, schema_version, content, content_hash, extraction_method, trust, ttl_kind, ttl_ms, token_count, created_at, updated_at, confidence, source_turn, session_id, expires_at, superseded_by, rolled_back_at, retired_at, occurred_at, idempotency_key, version
SELECT "ordinal", "artifact_id", "trajectory_id", "scope_id", "artifact_type", "schema_version", "content", "content_hash", "extraction_method", "trust", "ttl_kind", "ttl_ms", "token_count", "created_at", "updated_at", "confidence", "source_turn", "session_id", "expires_at", "superseded_by", "rolled_back_at", "retired_at", "occurred_at", "idempotency_key", "version" FROM "artifact" WHERE "trajectory_id" = ?1 AND "content_hash" = ?2 AND "artifact_type" = ?3 AND "trust" = ?4 AND "superseded_by" IS NULL AND "rolled_back_at" IS NULL AND "retired_at" IS NULL;

-- artifact.by_trajectory_id_idempotency_key
--   takes: trajectory_id, idempotency_key
--   gives: ordinal, artifact_id, trajectory_id, scope_id, artifact_type, schema_version, content, content_hash, extraction_method, trust, ttl_kind, ttl_ms, token_count, created_at, updated_at, confidence, source_turn, session_id, expires_at, superseded_by, rolled_back_at, retired_at, occurred_at, idempotency_key, version
SELECT "ordinal", "artifact_id", "trajectory_id", "scope_id", "artifact_type", "schema_version", "content", "content_hash", "extraction_method", "trust", "ttl_kind", "ttl_ms", "token_count", "created_at", "updated_at", "confidence", "source_turn", "session_id", "expires_at", "superseded_by", "rolled_back_at", "retired_at", "occurred_at", "idempotency_key", "version" FROM "artifact" WHERE "trajectory_id" = ?1 AND "idempotency_key" = ?2 AND "idempotency_key" IS NOT NULL;

-- artifact.expired
--   takes: created_until, limit
--   gives: artifact_id
SELECT "artifact_id" FROM "artifact" WHERE "created_at" <= ?1 AND "rolled_back_at" IS NULL AND "superseded_by" IS NULL AND "retired_at" IS NULL ORDER BY "ordinal" LIMIT ?2;

-- artifact.stale
--   takes: created_until, confidence_below
--   gives: ordinal, artifact_id, trajectory_id, scope_id, artifact_type, schema_version, content, content_hash, extraction_method, trust, ttl_kind, ttl_ms, token_count, created_at, updated_at, confidence, source_turn, session_id, expires_at, superseded_by, rolled_back_at, retired_at, occurred_at, idempotency_key, version
SELECT "ordinal", "artifact_id", "trajectory_id", "scope_id", "artifact_type", "schema_version", "content", "content_hash", "extraction_method", "trust", "ttl_kind", "ttl_ms", "token_count", "created_at", "updated_at", "confidence", "source_turn", "session_id", "expires_at", "superseded_by", "rolled_back_at", "retired_at", "occurred_at", "idempotency_key", "version" FROM "artifact" WHERE "created_at" <= ?1 AND coalesce("confidence", 1) < CAST(?2 AS DOUBLE PRECISION) AND "rolled_back_at" IS NULL AND "superseded_by" IS NULL AND "retired_at" IS NULL ORDER BY "ordinal";

-- artifact.surplus
--   takes: keep, limit
--   gives: artifact_id
SELECT "artifact_id" FROM (SELECT "artifact_id", "ordinal", row_number() OVER (ORDER BY "created_at" DESC, "ordinal" DESC) AS place FROM "artifact" WHERE "rolled_back_at" IS NULL AND "superseded_by" IS NULL AND "retired_at" IS NULL) AS ranked WHERE place > ?1 ORDER BY "ordinal" LIMIT ?2;

-- artifact.surplus_by_trajectory
--   takes: keep, limit
--   gives: artifact_id
SELECT "artifact_id" FROM (SELECT "artifact_id", "ordinal", row_number() OVER (PARTITION BY "trajectory_id" ORDER BY "created_at" DESC, "ordinal" DESC) AS place FROM "artifact" WHERE "rolled_back_at" IS NULL AND "superseded_by" IS NULL AND "retired_at" IS NULL) AS ranked WHERE place > ?1 ORDER BY "ordinal" LIMIT ?2;

-- ===== checkpoint

CREATE TABLE "checkpoint" (
  "ordinal" INTEGER PRIMARY KEY AUTOINCREMENT,
  "checkpoint_id" BLOB NOT NULL CHECK (length("checkpoint_id") = 16),
  "trajectory_id" BLOB NOT NULL CHECK (length("trajectory_id") = 16),
  "turn_number" INTEGER NOT NULL CHECK ("turn_number" >= 0),
  "codec" TEXT NOT NULL,
  "state" BLOB NOT NULL,
  "recoverable" INTEGER NOT NULL CHECK ("recoverable" IN (0, 1)),
  "created_at" INTEGER NOT NULL,
  "scope_id" BLOB CHECK (length("scope_id") = 16),
  UNIQUE ("checkpoint_id"),
  FOREIGN KEY ("trajectory_id") REFERENCES "trajectory" ("trajectory_id") ON DELETE CASCADE,
  FOREIGN KEY ("scope_id") REFERENCES "scope" ("scope_id") ON DELETE CASCADE
) STRICT;

CREATE INDEX "ix_checkpoint_list_by_trajectory" ON "checkpoint" ("trajectory_id", "created_at");

CREATE INDEX "ix_checkpoint_scope_id" ON "checkpoint" ("scope_id") WHERE "scope_id" IS NOT NULL;

-- checkpoint.insert
--   takes: ordinal, checkpoint_id, trajectory_id, turn_number, codec, state, recoverable, created_at, scope_id
--   gives: ordinal
INSERT INTO "checkpoint" ("ordinal", "checkpoint_id", "trajectory_id", "turn_number", "codec", "state", "recoverable", "created_at", "scope_id") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) RETURNING "ordinal";

-- checkpoint.insert_or_ignore
--   takes: ordinal, checkpoint_id, trajectory_id, turn_number, codec, state, recoverable, created_at, scope_id
--   gives: ordinal
INSERT INTO "checkpoint" ("ordinal", "checkpoint_id", "trajectory_id", "turn_number", "codec", "state", "recoverable", "created_at", "scope_id") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) ON CONFLICT DO NOTHING RETURNING "ordinal";

-- checkpoint.upsert
--   takes: ordinal, checkpoint_id, trajectory_id, turn_number, codec, state, recoverable, created_at, scope_id
--   gives: ordinal
INSERT INTO "checkpoint" ("ordinal", "checkpoint_id", "trajectory_id", "turn_number", "codec", "state", "recoverable", "created_at", "scope_id") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) ON CONFLICT ("checkpoint_id") DO UPDATE SET "trajectory_id" = excluded."trajectory_id", "turn_number" = excluded."turn_number", "codec" = excluded."codec", "state" = excluded."state", "recoverable" = excluded."recoverable", "created_at" = excluded."created_at", "scope_id" = excluded."scope_id" RETURNING "ordinal";

-- checkpoint.get
--   takes: checkpoint_id
--   gives: ordinal, checkpoint_id, trajectory_id, turn_number, codec, state, recoverable, created_at, scope_id
SELECT "ordinal", "checkpoint_id", "trajectory_id", "turn_number", "codec", "state", "recoverable", "created_at", "scope_id" FROM "checkpoint" WHERE "checkpoint_id" = ?1;

-- checkpoint.delete
--   takes: checkpoint_id
DELETE FROM "checkpoint" WHERE "checkpoint_id" = ?1;

-- checkpoint.count
--   takes: nothing
--   gives: count
SELECT count(*) FROM "checkpoint";

-- checkpoint.page
--   takes: ordinal, limit
--   gives: ordinal, checkpoint_id, trajectory_id, turn_number, codec, state, recoverable, created_at, scope_id
SELECT "ordinal", "checkpoint_id", "trajectory_id", "turn_number", "codec", "state", "recoverable", "created_at", "scope_id" FROM "checkpoint" WHERE "ordinal" > ?1 ORDER BY "ordinal" LIMIT ?2;

-- checkpoint.get_many
--   takes: ordinals
--   gives: ordinal, checkpoint_id, trajectory_id, turn_number, codec, state, recoverable, created_at, scope_id
SELECT "ordinal", "checkpoint_id", "trajectory_id", "turn_number", "codec", "state", "recoverable", "created_at", "scope_id" FROM "checkpoint" WHERE "ordinal" IN (SELECT value FROM json_each(?1));

-- checkpoint.list_by_trajectory
--   takes: trajectory_id, limit
--   gives: ordinal, checkpoint_id, trajectory_id, turn_number, codec, state, recoverable, created_at, scope_id
SELECT "ordinal", "checkpoint_id", "trajectory_id", "turn_number", "codec", "state", "recoverable", "created_at", "scope_id" FROM "checkpoint" WHERE "trajectory_id" = ?1 ORDER BY "created_at" DESC, "ordinal" DESC LIMIT ?2;

-- ===== note

CREATE TABLE "note" (
  "ordinal" INTEGER PRIMARY KEY AUTOINCREMENT,
  "note_id" BLOB NOT NULL CHECK (length("note_id") = 16),
  "entity" TEXT NOT NULL,
  "entity_type" TEXT NOT NULL,
  "note_type" TEXT NOT NULL CHECK ("note_type" IN ('convention', 'strategy', 'gotcha', 'fact', 'preference', 'relationship', 'procedure', 'meta')),
  "content" TEXT NOT NULL,
  "content_hash" BLOB NOT NULL CHECK (length("content_hash") = 32),
  "fingerprint" BLOB NOT NULL CHECK (length("fingerprint") = 32),
  "confidence" REAL NOT NULL CHECK ("confidence" >= 0) CHECK ("confidence" <= 1),
  "trust" TEXT NOT NULL CHECK ("trust" IN ('system', 'user', 'tool', 'web')),
  "token_count" INTEGER NOT NULL CHECK ("token_count" >= 0),
  "created_at" INTEGER NOT NULL,
  "updated_at" INTEGER NOT NULL,
  "importance" REAL CHECK ("importance" >= 1) CHECK ("importance" <= 10),
  "base_importance" REAL CHECK ("base_importance" >= 1) CHECK ("base_importance" <= 10),
  "valid_from" INTEGER,
  "valid_until" INTEGER,
  "source_trajectory_ids" BLOB NOT NULL CHECK (length("source_trajectory_ids") % 16 = 0),
  "occurred_at" INTEGER,
  "namespace" TEXT,
  "tags" TEXT NOT NULL CHECK (json_valid("tags")),
  "visible_to" TEXT CHECK (json_valid("visible_to")),
  "created_by" TEXT,
  "superseded_by" BLOB CHECK (length("superseded_by") = 16),
  "archived_at" INTEGER,
  "idempotency_key" TEXT,
  "version" INTEGER NOT NULL CHECK ("version" >= 1),
  UNIQUE ("note_id"),
  FOREIGN KEY ("superseded_by") REFERENCES "note" ("note_id") ON DELETE SET NULL
) STRICT;

CREATE UNIQUE INDEX "uq_note_fingerprint" ON "note" ("fingerprint") WHERE "archived_at" IS NULL AND "superseded_by" IS NULL AND "idempotency_key" IS NULL;

CREATE UNIQUE INDEX "uq_note_created_by_idempotency_key" ON "note" ("created_by", "idempotency_key") WHERE "created_by" IS NOT NULL AND "idempotency_key" IS NOT NULL;

CREATE UNIQUE INDEX "uq_note_idempotency_key" ON "note" ("idempotency_key") WHERE "created_by" IS NULL AND "idempotency_key" IS NOT NULL;

CREATE INDEX "ix_note_find_by_entity" ON "note" ("entity", "entity_type", "created_at");

CREATE INDEX "ix_note_list_by_type" ON "note" ("note_type", "created_at");

CREATE INDEX "ix_note_superseded_by" ON "note" ("superseded_by") WHERE "superseded_by" IS NOT NULL;

-- note.insert
--   takes: ordinal, note_id, entity, entity_type, note_type, content, content_hash, fingerprint, confidence, trust, token_count, created_at, updated_at, importance, base_importance, valid_from, valid_until, source_trajectory_ids, occurred_at, namespace, tags, visible_to, created_by, superseded_by, archived_at, idempotency_key, version
--   gives: ordinal
INSERT INTO "note" ("ordinal", "note_id", "entity", "entity_type", "note_type", "content", "content_hash", "fingerprint", "confidence", "trust", "token_count", "created_at", "updated_at", "importance", "base_importance", "valid_from", "valid_until", "source_trajectory_ids", "occurred_at", "namespace", "tags", "visible_to", "created_by", "superseded_by", "archived_at", "idempotency_key", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26, ?27) RETURNING "ordinal";

-- note.insert_or_ignore
--   takes: ordinal, note_id, entity, entity_type, note_type, content, content_hash, fingerprint, confidence, trust, token_count, created_at, updated_at, importance, base_importance, valid_from, valid_until, source_trajectory_ids, occurred_at, namespace, tags, visible_to, created_by, superseded_by, archived_at, idempotency_key, version
--   gives: ordinal
INSERT INTO "note" ("ordinal", "note_id", "entity", "entity_type", "note_type", "content", "content_hash", "fingerprint", "confidence", "trust", "token_count", "created_at", "updated_at", "importance", "base_importance", "valid_from", "valid_until", "source_trajectory_ids", "occurred_at", "namespace", "tags", "visible_to", "created_by", "superseded_by", "archived_at", "idempotency_key", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26, ?27) ON CONFLICT DO NOTHING RETURNING "ordinal";

-- note.upsert
--   takes: ordinal, note_id, entity, entity_type, note_type, content, content_hash, fingerprint, confidence, trust, token_count, created_at, updated_at, importance, base_importance, valid_from, valid_until, source_trajectory_ids, occurred_at, namespace, tags, visible_to, created_by, superseded_by, archived_at, idempotency_key, version
--   gives: ordinal
INSERT INTO "note" ("ordinal", "note_id", "entity", "entity_type", "note_type", "content", "content_hash", "fingerprint", "confidence", "trust", "token_count", "created_at", "updated_at", "importance", "base_importance", "valid_from", "valid_until", "source_trajectory_ids", "occurred_at", "namespace", "tags", "visible_to", "created_by", "superseded_by", "archived_at", "idempotency_key", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26, ?27) ON CONFLICT ("note_id") DO UPDATE SET "entity" = excluded."entity", "entity_type" = excluded."entity_type", "note_type" = excluded."note_type", "content" = excluded."content", "content_hash" = excluded."content_hash", "fingerprint" = excluded."fingerprint", "confidence" = excluded."confidence", "trust" = excluded."trust", "token_count" = excluded."token_count", "created_at" = excluded."created_at", "updated_at" = excluded."updated_at", "importance" = excluded."importance", "base_importance" = excluded."base_importance", "valid_from" = excluded."valid_from", "valid_until" = excluded."valid_until", "source_trajectory_ids" = excluded."source_trajectory_ids", "occurred_at" = excluded."occurred_at", "namespace" = excluded."namespace", "tags" = excluded."tags", "visible_to" = excluded."visible_to", "created_by" = excluded."created_by", "superseded_by" = excluded."superseded_by", "archived_at" = excluded."archived_at", "idempotency_key" = excluded."idempotency_key", "version" = excluded."version" RETURNING "ordinal";

-- note.get
--   takes: note_id
--   gives: ordinal, note_id, entity, entity_type, note_type, content, content_hash, fingerprint, confidence, trust, token_count, created_at, updated_at, importance, base_importance, valid_from, valid_until, source_trajectory_ids, occurred_at, namespace, tags, visible_to, created_by, superseded_by, archived_at, idempotency_key, version
SELECT "ordinal", "note_id", "entity", "entity_type", "note_type", "content", "content_hash", "fingerprint", "confidence", "trust", "token_count", "created_at", "updated_at", "importance", "base_importance", "valid_from", "valid_until", "source_trajectory_ids", "occurred_at", "namespace", "tags", "visible_to", "created_by", "superseded_by", "archived_at", "idempotency_key", "version" FROM "note" WHERE "note_id" = ?1;

-- note.update
--   takes: entity, entity_type, note_type, content, content_hash, fingerprint, confidence, trust, token_count, created_at, updated_at, importance, base_importance, valid_from, valid_until, source_trajectory_ids, occurred_at, namespace, tags, visible_to, created_by, superseded_by, archived_at, idempotency_key, version, note_id, version
UPDATE "note" SET "entity" = ?1, "entity_type" = ?2, "note_type" = ?3, "content" = ?4, "content_hash" = ?5, "fingerprint" = ?6, "confidence" = ?7, "trust" = ?8, "token_count" = ?9, "created_at" = ?10, "updated_at" = ?11, "importance" = ?12, "base_importance" = ?13, "valid_from" = ?14, "valid_until" = ?15, "source_trajectory_ids" = ?16, "occurred_at" = ?17, "namespace" = ?18, "tags" = ?19, "visible_to" = ?20, "created_by" = ?21, "superseded_by" = ?22, "archived_at" = ?23, "idempotency_key" = ?24, "version" = ?25 WHERE "note_id" = ?26 AND "version" = ?27;

-- note.delete
--   takes: note_id
DELETE FROM "note" WHERE "note_id" = ?1;

-- note.count
--   takes: nothing
--   gives: count
SELECT count(*) FROM "note";

-- note.page
--   takes: ordinal, limit
--   gives: ordinal, note_id, entity, entity_type, note_type, content, content_hash, fingerprint, confidence, trust, token_count, created_at, updated_at, importance, base_importance, valid_from, valid_until, source_trajectory_ids, occurred_at, namespace, tags, visible_to, created_by, superseded_by, archived_at, idempotency_key, version
SELECT "ordinal", "note_id", "entity", "entity_type", "note_type", "content", "content_hash", "fingerprint", "confidence", "trust", "token_count", "created_at", "updated_at", "importance", "base_importance", "valid_from", "valid_until", "source_trajectory_ids", "occurred_at", "namespace", "tags", "visible_to", "created_by", "superseded_by", "archived_at", "idempotency_key", "version" FROM "note" WHERE "ordinal" > ?1 ORDER BY "ordinal" LIMIT ?2;

-- note.get_many
--   takes: ordinals
--   gives: ordinal, note_id, entity, entity_type, note_type, content, content_hash, fingerprint, confidence, trust, token_count, created_at, updated_at, importance, base_importance, valid_from, valid_until, source_trajectory_ids, occurred_at, namespace, tags, visible_to, created_by, superseded_by, archived_at, idempotency_key, version
SELECT "ordinal", "note_id", "entity", "entity_type", "note_type", "content", "content_hash", "fingerprint", "confidence", "trust", "token_count", "created_at", "updated_at", "importance", "base_importance", "valid_from", "valid_until", "source_trajectory_ids", "occurred_at", "namespace", "tags", "visible_to", "created_by", "superseded_by", "archived_at", "idempotency_key", "version" FROM "note" WHERE "ordinal" IN (SELECT value FROM json_each(?1));

-- note.find_by_entity
--   takes: entity, entity_type
--   gives: ordinal, note_id, entity, entity_type, note_type, content, content_hash, fingerprint, confidence, trust, token_count, created_at, updated_at, importance, base_importance, valid_from, valid_until, source_trajectory_ids, occurred_at, namespace, tags, visible_to, created_by, superseded_by, archived_at, idempotency_key, version
SELECT "ordinal", "note_id", "entity", "entity_type", "note_type", "content", "content_hash", "fingerprint", "confidence", "trust", "token_count", "created_at", "updated_at", "importance", "base_importance", "valid_from", "valid_until", "source_trajectory_ids", "occurred_at", "namespace", "tags", "visible_to", "created_by", "superseded_by", "archived_at", "idempotency_key", "version" FROM "note" WHERE "entity" = ?1 AND "entity_type" = ?2 ORDER BY "created_at", "ordinal";

-- note.list_by_type
--   takes: note_type, limit
--   gives: ordinal, note_id, entity, entity_type, note_type, content, content_hash, fingerprint, confidence, trust, token_count, created_at, updated_at, importance, base_importance, valid_from, valid_until, source_trajectory_ids, occurred_at, namespace, tags, visible_to, created_by, superseded_by, archived_at, idempotency_key, version
SELECT "ordinal", "note_id", "entity", "entity_type", "note_type", "content", "content_hash", "fingerprint", "confidence", "trust", "token_count", "created_at", "updated_at", "importance", "base_importance", "valid_from", "valid_until", "source_trajectory_ids", "occurred_at", "namespace", "tags", "visible_to", "created_by", "superseded_by", "archived_at", "idempotency_key", "version" FROM "note" WHERE "note_type" = ?1 ORDER BY "created_at", "ordinal" LIMIT ?2;

-- note.referring_superseded_by
--   takes: superseded_by
--   gives: ordinal, note_id, entity, entity_type, note_type, content, content_hash, fingerprint, confidence, trust, token_count, created_at, updated_at, importance, base_importance, valid_from, valid_until, source_trajectory_ids, occurred_at, namespace, tags, visible_to, created_by, superseded_by, archived_at, idempotency_key, version
SELECT "ordinal", "note_id", "entity", "entity_type", "note_type", "content", "content_hash", "fingerprint", "confidence", "trust", "token_count", "created_at", "updated_at", "importance", "base_importance", "valid_from", "valid_until", "source_trajectory_ids", "occurred_at", "namespace", "tags", "visible_to", "created_by", "superseded_by", "archived_at", "idempotency_key", "version" FROM "note" WHERE "superseded_by" = ?1 ORDER BY "ordinal";

-- note.by_fingerprint
--   takes: fingerprint
--   gives: ordinal, note_id, entity, entity_type, note_type, content, content_hash, fingerprint, confidence, trust, token_count, created_at, updated_at, importance, base_importance, valid_from, valid_until, source_trajectory_ids, occurred_at, namespace, tags, visible_to, created_by, superseded_by, archived_at, idempotency_key, version
SELECT "ordinal", "note_id", "entity", "entity_type", "note_type", "content", "content_hash", "fingerprint", "confidence", "trust", "token_count", "created_at", "updated_at", "importance", "base_importance", "valid_from", "valid_until", "source_trajectory_ids", "occurred_at", "namespace", "tags", "visible_to", "created_by", "superseded_by", "archived_at", "idempotency_key", "version" FROM "note" WHERE "fingerprint" = ?1 AND "archived_at" IS NULL AND "superseded_by" IS NULL AND "idempotency_key" IS NULL;

-- note.by_created_by_idempotency_key
--   takes: created_by, idempotency_key
--   gives: ordinal, note_id, entity, entity_type, note_type, content, content_hash, fingerprint, confidence, trust, token_count, created_at, updated_at, importance, base_importance, valid_from, valid_until, source_trajectory_ids, occurred_at, namespace, tags, visible_to, created_by, superseded_by, archived_at, idempotency_key, version
SELECT "ordinal", "note_id", "entity", "entity_type", "note_type", "content", "content_hash", "fingerprint", "confidence", "trust", "token_count", "created_at", "updated_at", "importance", "base_importance", "valid_from", "valid_until", "source_trajectory_ids", "occurred_at", "namespace", "tags", "visible_to", "created_by", "superseded_by", "archived_at", "idempotency_key", "version" FROM "note" WHERE "created_by" = ?1 AND "idempotency_key" = ?2 AND "created_by" IS NOT NULL AND "idempotency_key" IS NOT NULL;

-- note.by_idempotency_key
--   takes: idempotency_key
--   gives: ordinal, note_id, entity, entity_type, note_type, content, content_hash, fingerprint, confidence, trust, token_count, created_at, updated_at, importance, base_importance, valid_from, valid_until, source_trajectory_ids, occurred_at, namespace, tags, visible_to, created_by, superseded_by, archived_at, idempotency_key, version
SELECT "ordinal", "note_id", "entity", "entity_type", "note_type", "content", "content_hash", "fingerprint", "confidence", "trust", "token_count", "created_at", "updated_at", "importance", "base_importance", "valid_from", "valid_until", "source_trajectory_ids", "occurred_at", "namespace", "tags", "visible_to", "created_by", "superseded_by", "archived_at", "idempotency_key", "version" FROM "note" WHERE "idempotency_key" = ?1 AND "created_by" IS NULL AND "idempotency_key" IS NOT NULL;

-- note.expired
--   takes: created_until, limit
--   gives: note_id
SELECT "note_id" FROM "note" WHERE "created_at" <= ?1 AND "archived_at" IS NULL AND "superseded_by" IS NULL ORDER BY "ordinal" LIMIT ?2;

-- note.stale
--   takes: created_until, confidence_below
--   gives: ordinal, note_id, entity, entity_type, note_type, content, content_hash, fingerprint, confidence, trust, token_count, created_at, updated_at, importance, base_importance, valid_from, valid_until, source_trajectory_ids, occurred_at, namespace, tags, visible_to, created_by, superseded_by, archived_at, idempotency_key, version
SELECT "ordinal", "note_id", "entity", "entity_type", "note_type", "content", "content_hash", "fingerprint", "confidence", "trust", "token_count", "created_at", "updated_at", "importance", "base_importance", "valid_from", "valid_until", "source_trajectory_ids", "occurred_at", "namespace", "tags", "visible_to", "created_by", "superseded_by", "archived_at", "idempotency_key", "version" FROM "note" WHERE "created_at" <= ?1 AND coalesce("confidence", 1) < CAST(?2 AS DOUBLE PRECISION) AND "archived_at" IS NULL AND "superseded_by" IS NULL ORDER BY "ordinal";

-- note.surplus
--   takes: keep, limit
--   gives: note_id
SELECT "note_id" FROM (SELECT "note_id", "ordinal", row_number() OVER (ORDER BY "created_at" DESC, "ordinal" DESC) AS place FROM "note" WHERE "archived_at" IS NULL AND "superseded_by" IS NULL) AS ranked WHERE place > ?1 ORDER BY "ordinal" LIMIT ?2;

-- ===== usage

CREATE TABLE "usage" (
  "ordinal" INTEGER PRIMARY KEY AUTOINCREMENT,
  "owner_type" TEXT NOT NULL,
  "owner_id" BLOB NOT NULL CHECK (length("owner_id") = 16),
  "access_count" INTEGER NOT NULL CHECK ("access_count" >= 0),
  "last_accessed_at" INTEGER NOT NULL,
  "version" INTEGER NOT NULL CHECK ("version" >= 1),
  UNIQUE ("owner_id")
) STRICT;

-- usage.insert
--   takes: ordinal, owner_type, owner_id, access_count, last_accessed_at, version
--   gives: ordinal
INSERT INTO "usage" ("ordinal", "owner_type", "owner_id", "access_count", "last_accessed_at", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6) RETURNING "ordinal";

-- usage.insert_or_ignore
--   takes: ordinal, owner_type, owner_id, access_count, last_accessed_at, version
--   gives: ordinal
INSERT INTO "usage" ("ordinal", "owner_type", "owner_id", "access_count", "last_accessed_at", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT DO NOTHING RETURNING "ordinal";

-- usage.upsert
--   takes: ordinal, owner_type, owner_id, access_count, last_accessed_at, version
--   gives: ordinal
INSERT INTO "usage" ("ordinal", "owner_type", "owner_id", "access_count", "last_accessed_at", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT ("owner_id") DO UPDATE SET "owner_type" = excluded."owner_type", "access_count" = excluded."access_count", "last_accessed_at" = excluded."last_accessed_at", "version" = excluded."version" RETURNING "ordinal";

-- usage.get
--   takes: owner_id
--   gives: ordinal, owner_type, owner_id, access_count, last_accessed_at, version
SELECT "ordinal", "owner_type", "owner_id", "access_count", "last_accessed_at", "version" FROM "usage" WHERE "owner_id" = ?1;

-- usage.update
--   takes: owner_type, access_count, last_accessed_at, version, owner_id, version
UPDATE "usage" SET "owner_type" = ?1, "access_count" = ?2, "last_accessed_at" = ?3, "version" = ?4 WHERE "owner_id" = ?5 AND "version" = ?6;

-- usage.delete
--   takes: owner_id
DELETE FROM "usage" WHERE "owner_id" = ?1;

-- usage.count
--   takes: nothing
--   gives: count
SELECT count(*) FROM "usage";

-- usage.page
--   takes: ordinal, limit
--   gives: ordinal, owner_type, owner_id, access_count, last_accessed_at, version
SELECT "ordinal", "owner_type", "owner_id", "access_count", "last_accessed_at", "version" FROM "usage" WHERE "ordinal" > ?1 ORDER BY "ordinal" LIMIT ?2;

-- usage.get_many
--   takes: ordinals
--   gives: ordinal, owner_type, owner_id, access_count, last_accessed_at, version
SELECT "ordinal", "owner_type", "owner_id", "access_count", "last_accessed_at", "version" FROM "usage" WHERE "ordinal" IN (SELECT value FROM json_each(?1));

-- ===== edge

CREATE TABLE "edge" (
  "ordinal" INTEGER PRIMARY KEY AUTOINCREMENT,
  "edge_id" BLOB NOT NULL CHECK (length("edge_id") = 16),
  "source_type" TEXT NOT NULL CHECK ("source_type" IN ('trajectory', 'scope', 'turn', 'turn_summary', 'artifact', 'note', 'session', 'agent', 'user', 'system', 'edge', 'checkpoint', 'context_window', 'embedding', 'embedding_space', 'event', 'lock', 'message', 'delegation', 'handoff', 'conflict', 'job', 'config')),
  "source_id" BLOB NOT NULL CHECK (length("source_id") = 16),
  "target_type" TEXT NOT NULL CHECK ("target_type" IN ('trajectory', 'scope', 'turn', 'turn_summary', 'artifact', 'note', 'session', 'agent', 'user', 'system', 'edge', 'checkpoint', 'context_window', 'embedding', 'embedding_space', 'event', 'lock', 'message', 'delegation', 'handoff', 'conflict', 'job', 'config')),
  "target_id" BLOB NOT NULL CHECK (length("target_id") = 16),
  "relation" TEXT NOT NULL CHECK ("relation" IN ('supports', 'contradicts', 'supersedes', 'related_to', 'caused_by', 'link')),
  "weight" REAL NOT NULL CHECK ("weight" >= 0) CHECK ("weight" <= 1),
  "base_weight" REAL NOT NULL CHECK ("base_weight" >= 0) CHECK ("base_weight" <= 1),
  "created_at" INTEGER NOT NULL,
  "auto_linked" INTEGER NOT NULL CHECK ("auto_linked" IN (0, 1)),
  "user_created" INTEGER NOT NULL CHECK ("user_created" IN (0, 1)),
  "last_traversed_at" INTEGER,
  "removed_at" INTEGER,
  "version" INTEGER NOT NULL CHECK ("version" >= 1),
  UNIQUE ("edge_id")
) STRICT;

CREATE UNIQUE INDEX "uq_edge_source_id_target_id_relation" ON "edge" ("source_id", "target_id", "relation") WHERE "removed_at" IS NULL;

CREATE INDEX "ix_edge_list_by_source" ON "edge" ("source_id", "created_at");

CREATE INDEX "ix_edge_list_by_target" ON "edge" ("target_id", "created_at");

-- edge.insert
--   takes: ordinal, edge_id, source_type, source_id, target_type, target_id, relation, weight, base_weight, created_at, auto_linked, user_created, last_traversed_at, removed_at, version
--   gives: ordinal
INSERT INTO "edge" ("ordinal", "edge_id", "source_type", "source_id", "target_type", "target_id", "relation", "weight", "base_weight", "created_at", "auto_linked", "user_created", "last_traversed_at", "removed_at", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15) RETURNING "ordinal";

-- edge.insert_or_ignore
--   takes: ordinal, edge_id, source_type, source_id, target_type, target_id, relation, weight, base_weight, created_at, auto_linked, user_created, last_traversed_at, removed_at, version
--   gives: ordinal
INSERT INTO "edge" ("ordinal", "edge_id", "source_type", "source_id", "target_type", "target_id", "relation", "weight", "base_weight", "created_at", "auto_linked", "user_created", "last_traversed_at", "removed_at", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15) ON CONFLICT DO NOTHING RETURNING "ordinal";

-- edge.upsert
--   takes: ordinal, edge_id, source_type, source_id, target_type, target_id, relation, weight, base_weight, created_at, auto_linked, user_created, last_traversed_at, removed_at, version
--   gives: ordinal
INSERT INTO "edge" ("ordinal", "edge_id", "source_type", "source_id", "target_type", "target_id", "relation", "weight", "base_weight", "created_at", "auto_linked", "user_created", "last_traversed_at", "removed_at", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15) ON CONFLICT ("edge_id") DO UPDATE SET "source_type" = excluded."source_type", "source_id" = excluded."source_id", "target_type" = excluded."target_type", "target_id" = excluded."target_id", "relation" = excluded."relation", "weight" = excluded."weight", "base_weight" = excluded."base_weight", "created_at" = excluded."created_at", "auto_linked" = excluded."auto_linked", "user_created" = excluded."user_created", "last_traversed_at" = excluded."last_traversed_at", "removed_at" = excluded."removed_at", "version" = excluded."version" RETURNING "ordinal";

-- edge.get
--   takes: edge_id
--   gives: ordinal, edge_id, source_type, source_id, target_type, target_id, relation, weight, base_weight, created_at, auto_linked, user_created, last_traversed_at, removed_at, version
SELECT "ordinal", "edge_id", "source_type", "source_id", "target_type", "target_id", "relation", "weight", "base_weight", "created_at", "auto_linked", "user_created", "last_traversed_at", "removed_at", "version" FROM "edge" WHERE "edge_id" = ?1;

-- edge.update
--   takes: source_type, source_id, target_type, target_id, relation, weight, base_weight, created_at, auto_linked, user_created, last_traversed_at, removed_at, version, edge_id, version
UPDATE "edge" SET "source_type" = ?1, "source_id" = ?2, "target_type" = ?3, "target_id" = ?4, "relation" = ?5, "weight" = ?6, "base_weight" = ?7, "created_at" = ?8, "auto_linked" = ?9, "user_created" = ?10, "last_traversed_at" = ?11, "removed_at" = ?12, "version" = ?13 WHERE "edge_id" = ?14 AND "version" = ?15;

-- edge.delete
--   takes: edge_id
DELETE FROM "edge" WHERE "edge_id" = ?1;

-- edge.count
--   takes: nothing
--   gives: count
SELECT count(*) FROM "edge";

-- edge.page
--   takes: ordinal, limit
--   gives: ordinal, edge_id, source_type, source_id, target_type, target_id, relation, weight, base_weight, created_at, auto_linked, user_created, last_traversed_at, removed_at, version
SELECT "ordinal", "edge_id", "source_type", "source_id", "target_type", "target_id", "relation", "weight", "base_weight", "created_at", "auto_linked", "user_created", "last_traversed_at", "removed_at", "version" FROM "edge" WHERE "ordinal" > ?1 ORDER BY "ordinal" LIMIT ?2;

-- edge.get_many
--   takes: ordinals
--   gives: ordinal, edge_id, source_type, source_id, target_type, target_id, relation, weight, base_weight, created_at, auto_linked, user_created, last_traversed_at, removed_at, version
SELECT "ordinal", "edge_id", "source_type", "source_id", "target_type", "target_id", "relation", "weight", "base_weight", "created_at", "auto_linked", "user_created", "last_traversed_at", "removed_at", "version" FROM "edge" WHERE "ordinal" IN (SELECT value FROM json_each(?1));

-- edge.list_by_source
--   takes: source_id
--   gives: ordinal, edge_id, source_type, source_id, target_type, target_id, relation, weight, base_weight, created_at, auto_linked, user_created, last_traversed_at, removed_at, version
SELECT "ordinal", "edge_id", "source_type", "source_id", "target_type", "target_id", "relation", "weight", "base_weight", "created_at", "auto_linked", "user_created", "last_traversed_at", "removed_at", "version" FROM "edge" WHERE "source_id" = ?1 ORDER BY "created_at", "ordinal";

-- edge.list_by_target
--   takes: target_id
--   gives: ordinal, edge_id, source_type, source_id, target_type, target_id, relation, weight, base_weight, created_at, auto_linked, user_created, last_traversed_at, removed_at, version
SELECT "ordinal", "edge_id", "source_type", "source_id", "target_type", "target_id", "relation", "weight", "base_weight", "created_at", "auto_linked", "user_created", "last_traversed_at", "removed_at", "version" FROM "edge" WHERE "target_id" = ?1 ORDER BY "created_at", "ordinal";

-- edge.by_source_id_target_id_relation
--   takes: source_id, target_id, relation
--   gives: ordinal, edge_id, source_type, source_id, target_type, target_id, relation, weight, base_weight, created_at, auto_linked, user_created, last_traversed_at, removed_at, version
SELECT "ordinal", "edge_id", "source_type", "source_id", "target_type", "target_id", "relation", "weight", "base_weight", "created_at", "auto_linked", "user_created", "last_traversed_at", "removed_at", "version" FROM "edge" WHERE "source_id" = ?1 AND "target_id" = ?2 AND "relation" = ?3 AND "removed_at" IS NULL;

-- ===== embedding_space

CREATE TABLE "embedding_space" (
  "ordinal" INTEGER PRIMARY KEY AUTOINCREMENT,
  "space_id" BLOB NOT NULL CHECK (length("space_id") = 16),
  "model_id" TEXT NOT NULL,
  "dimensions" INTEGER NOT NULL CHECK ("dimensions" >= 1) CHECK ("dimensions" <= 16384),
  "metric" TEXT NOT NULL CHECK ("metric" IN ('cosine', 'l2', 'inner_product')),
  "state" TEXT NOT NULL CHECK ("state" IN ('active', 'building', 'retired')),
  "created_at" INTEGER NOT NULL,
  "version" INTEGER NOT NULL CHECK ("version" >= 1),
  UNIQUE ("space_id")
) STRICT;

CREATE UNIQUE INDEX "uq_embedding_space_model_id_dimensions_metric" ON "embedding_space" ("model_id", "dimensions", "metric");

-- embedding_space.insert
--   takes: ordinal, space_id, model_id, dimensions, metric, state, created_at, version
--   gives: ordinal
INSERT INTO "embedding_space" ("ordinal", "space_id", "model_id", "dimensions", "metric", "state", "created_at", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) RETURNING "ordinal";

-- embedding_space.insert_or_ignore
--   takes: ordinal, space_id, model_id, dimensions, metric, state, created_at, version
--   gives: ordinal
INSERT INTO "embedding_space" ("ordinal", "space_id", "model_id", "dimensions", "metric", "state", "created_at", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) ON CONFLICT DO NOTHING RETURNING "ordinal";

-- embedding_space.upsert
--   takes: ordinal, space_id, model_id, dimensions, metric, state, created_at, version
--   gives: ordinal
INSERT INTO "embedding_space" ("ordinal", "space_id", "model_id", "dimensions", "metric", "state", "created_at", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) ON CONFLICT ("space_id") DO UPDATE SET "model_id" = excluded."model_id", "dimensions" = excluded."dimensions", "metric" = excluded."metric", "state" = excluded."state", "created_at" = excluded."created_at", "version" = excluded."version" RETURNING "ordinal";

-- embedding_space.get
--   takes: space_id
--   gives: ordinal, space_id, model_id, dimensions, metric, state, created_at, version
SELECT "ordinal", "space_id", "model_id", "dimensions", "metric", "state", "created_at", "version" FROM "embedding_space" WHERE "space_id" = ?1;

-- embedding_space.update
--   takes: model_id, dimensions, metric, state, created_at, version, space_id, version
UPDATE "embedding_space" SET "model_id" = ?1, "dimensions" = ?2, "metric" = ?3, "state" = ?4, "created_at" = ?5, "version" = ?6 WHERE "space_id" = ?7 AND "version" = ?8;

-- embedding_space.delete
--   takes: space_id
DELETE FROM "embedding_space" WHERE "space_id" = ?1;

-- embedding_space.count
--   takes: nothing
--   gives: count
SELECT count(*) FROM "embedding_space";

-- embedding_space.page
--   takes: ordinal, limit
--   gives: ordinal, space_id, model_id, dimensions, metric, state, created_at, version
SELECT "ordinal", "space_id", "model_id", "dimensions", "metric", "state", "created_at", "version" FROM "embedding_space" WHERE "ordinal" > ?1 ORDER BY "ordinal" LIMIT ?2;

-- embedding_space.get_many
--   takes: ordinals
--   gives: ordinal, space_id, model_id, dimensions, metric, state, created_at, version
SELECT "ordinal", "space_id", "model_id", "dimensions", "metric", "state", "created_at", "version" FROM "embedding_space" WHERE "ordinal" IN (SELECT value FROM json_each(?1));

-- embedding_space.list_all
--   takes: nothing
--   gives: ordinal, space_id, model_id, dimensions, metric, state, created_at, version
SELECT "ordinal", "space_id", "model_id", "dimensions", "metric", "state", "created_at", "version" FROM "embedding_space" ORDER BY "ordinal";

-- embedding_space.by_model_id_dimensions_metric
--   takes: model_id, dimensions, metric
--   gives: ordinal, space_id, model_id, dimensions, metric, state, created_at, version
SELECT "ordinal", "space_id", "model_id", "dimensions", "metric", "state", "created_at", "version" FROM "embedding_space" WHERE "model_id" = ?1 AND "dimensions" = ?2 AND "metric" = ?3;

-- ===== embedding

CREATE TABLE "embedding" (
  "ordinal" INTEGER PRIMARY KEY AUTOINCREMENT,
  "space_id" BLOB NOT NULL CHECK (length("space_id") = 16),
  "owner_type" TEXT NOT NULL,
  "owner_id" BLOB NOT NULL CHECK (length("owner_id") = 16),
  "chunk_index" INTEGER NOT NULL CHECK ("chunk_index" >= 0),
  "content_hash" BLOB NOT NULL CHECK (length("content_hash") = 32),
  "vector" BLOB NOT NULL CHECK (length("vector") > 0) CHECK (length("vector") % 4 = 0),
  "generated_at" INTEGER NOT NULL,
  "version" INTEGER NOT NULL CHECK ("version" >= 1),
  UNIQUE ("space_id", "owner_id", "chunk_index"),
  FOREIGN KEY ("space_id") REFERENCES "embedding_space" ("space_id") ON DELETE CASCADE
) STRICT;

CREATE INDEX "ix_embedding_list_by_owner" ON "embedding" ("owner_id", "chunk_index");

-- embedding.insert
--   takes: ordinal, space_id, owner_type, owner_id, chunk_index, content_hash, vector, generated_at, version
--   gives: ordinal
INSERT INTO "embedding" ("ordinal", "space_id", "owner_type", "owner_id", "chunk_index", "content_hash", "vector", "generated_at", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) RETURNING "ordinal";

-- embedding.insert_or_ignore
--   takes: ordinal, space_id, owner_type, owner_id, chunk_index, content_hash, vector, generated_at, version
--   gives: ordinal
INSERT INTO "embedding" ("ordinal", "space_id", "owner_type", "owner_id", "chunk_index", "content_hash", "vector", "generated_at", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) ON CONFLICT DO NOTHING RETURNING "ordinal";

-- embedding.upsert
--   takes: ordinal, space_id, owner_type, owner_id, chunk_index, content_hash, vector, generated_at, version
--   gives: ordinal
INSERT INTO "embedding" ("ordinal", "space_id", "owner_type", "owner_id", "chunk_index", "content_hash", "vector", "generated_at", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) ON CONFLICT ("space_id", "owner_id", "chunk_index") DO UPDATE SET "owner_type" = excluded."owner_type", "content_hash" = excluded."content_hash", "vector" = excluded."vector", "generated_at" = excluded."generated_at", "version" = excluded."version" RETURNING "ordinal";

-- embedding.get
--   takes: space_id, owner_id, chunk_index
--   gives: ordinal, space_id, owner_type, owner_id, chunk_index, content_hash, vector, generated_at, version
SELECT "ordinal", "space_id", "owner_type", "owner_id", "chunk_index", "content_hash", "vector", "generated_at", "version" FROM "embedding" WHERE "space_id" = ?1 AND "owner_id" = ?2 AND "chunk_index" = ?3;

-- embedding.update
--   takes: owner_type, content_hash, vector, generated_at, version, space_id, owner_id, chunk_index, version
UPDATE "embedding" SET "owner_type" = ?1, "content_hash" = ?2, "vector" = ?3, "generated_at" = ?4, "version" = ?5 WHERE "space_id" = ?6 AND "owner_id" = ?7 AND "chunk_index" = ?8 AND "version" = ?9;

-- embedding.delete
--   takes: space_id, owner_id, chunk_index
DELETE FROM "embedding" WHERE "space_id" = ?1 AND "owner_id" = ?2 AND "chunk_index" = ?3;

-- embedding.count
--   takes: nothing
--   gives: count
SELECT count(*) FROM "embedding";

-- embedding.page
--   takes: ordinal, limit
--   gives: ordinal, space_id, owner_type, owner_id, chunk_index, content_hash, vector, generated_at, version
SELECT "ordinal", "space_id", "owner_type", "owner_id", "chunk_index", "content_hash", "vector", "generated_at", "version" FROM "embedding" WHERE "ordinal" > ?1 ORDER BY "ordinal" LIMIT ?2;

-- embedding.get_many
--   takes: ordinals
--   gives: ordinal, space_id, owner_type, owner_id, chunk_index, content_hash, vector, generated_at, version
SELECT "ordinal", "space_id", "owner_type", "owner_id", "chunk_index", "content_hash", "vector", "generated_at", "version" FROM "embedding" WHERE "ordinal" IN (SELECT value FROM json_each(?1));

-- embedding.list_by_owner
--   takes: owner_id
--   gives: ordinal, space_id, owner_type, owner_id, chunk_index, content_hash, vector, generated_at, version
SELECT "ordinal", "space_id", "owner_type", "owner_id", "chunk_index", "content_hash", "vector", "generated_at", "version" FROM "embedding" WHERE "owner_id" = ?1 ORDER BY "chunk_index";

-- embedding.referring_space_id
--   takes: space_id
--   gives: ordinal, space_id, owner_type, owner_id, chunk_index, content_hash, vector, generated_at, version
SELECT "ordinal", "space_id", "owner_type", "owner_id", "chunk_index", "content_hash", "vector", "generated_at", "version" FROM "embedding" WHERE "space_id" = ?1 ORDER BY "ordinal";

-- ===== embedding_cache

CREATE TABLE "embedding_cache" (
  "content_hash" BLOB NOT NULL CHECK (length("content_hash") = 32),
  "model_id" TEXT NOT NULL,
  "dimensions" INTEGER NOT NULL CHECK ("dimensions" >= 1) CHECK ("dimensions" <= 16384),
  "vector" BLOB NOT NULL CHECK (length("vector") > 0) CHECK (length("vector") % 4 = 0),
  "created_at" INTEGER NOT NULL,
  PRIMARY KEY ("content_hash", "model_id", "dimensions")
) STRICT;

CREATE INDEX "ix_embedding_cache_list_older" ON "embedding_cache" ("created_at");

-- embedding_cache.insert
--   takes: content_hash, model_id, dimensions, vector, created_at
INSERT INTO "embedding_cache" ("content_hash", "model_id", "dimensions", "vector", "created_at") VALUES (?1, ?2, ?3, ?4, ?5);

-- embedding_cache.insert_or_ignore
--   takes: content_hash, model_id, dimensions, vector, created_at
INSERT INTO "embedding_cache" ("content_hash", "model_id", "dimensions", "vector", "created_at") VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO NOTHING;

-- embedding_cache.upsert
--   takes: content_hash, model_id, dimensions, vector, created_at
INSERT INTO "embedding_cache" ("content_hash", "model_id", "dimensions", "vector", "created_at") VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT ("content_hash", "model_id", "dimensions") DO UPDATE SET "vector" = excluded."vector", "created_at" = excluded."created_at";

-- embedding_cache.get
--   takes: content_hash, model_id, dimensions
--   gives: content_hash, model_id, dimensions, vector, created_at
SELECT "content_hash", "model_id", "dimensions", "vector", "created_at" FROM "embedding_cache" WHERE "content_hash" = ?1 AND "model_id" = ?2 AND "dimensions" = ?3;

-- embedding_cache.delete
--   takes: content_hash, model_id, dimensions
DELETE FROM "embedding_cache" WHERE "content_hash" = ?1 AND "model_id" = ?2 AND "dimensions" = ?3;

-- embedding_cache.count
--   takes: nothing
--   gives: count
SELECT count(*) FROM "embedding_cache";

-- embedding_cache.page
--   takes: content_hash, model_id, dimensions, limit
--   gives: content_hash, model_id, dimensions, vector, created_at
SELECT "content_hash", "model_id", "dimensions", "vector", "created_at" FROM "embedding_cache" WHERE ("content_hash", "model_id", "dimensions") > (?1, ?2, ?3) ORDER BY "content_hash", "model_id", "dimensions" LIMIT ?4;

-- embedding_cache.list_older
--   takes: limit
--   gives: content_hash, model_id, dimensions, vector, created_at
SELECT "content_hash", "model_id", "dimensions", "vector", "created_at" FROM "embedding_cache" ORDER BY "created_at" LIMIT ?1;

-- ===== context_window

CREATE TABLE "context_window" (
  "ordinal" INTEGER PRIMARY KEY AUTOINCREMENT,
  "window_id" BLOB NOT NULL CHECK (length("window_id") = 16),
  "trajectory_id" BLOB NOT NULL CHECK (length("trajectory_id") = 16),
  "assembled_at" INTEGER NOT NULL,
  "max_tokens" INTEGER NOT NULL CHECK ("max_tokens" >= 0),
  "used_tokens" INTEGER NOT NULL CHECK ("used_tokens" >= 0),
  "config_hash" BLOB NOT NULL CHECK (length("config_hash") = 32),
  "text_hash" BLOB NOT NULL CHECK (length("text_hash") = 32),
  "record" BLOB NOT NULL,
  "expires_at" INTEGER,
  UNIQUE ("window_id"),
  FOREIGN KEY ("trajectory_id") REFERENCES "trajectory" ("trajectory_id") ON DELETE CASCADE
) STRICT;

CREATE INDEX "ix_context_window_list_by_trajectory" ON "context_window" ("trajectory_id", "assembled_at");

CREATE INDEX "ix_context_window_list_expiring" ON "context_window" ("expires_at") WHERE "expires_at" IS NOT NULL;

CREATE INDEX "ix_context_window_list_oldest" ON "context_window" ("assembled_at");

-- context_window.insert
--   takes: ordinal, window_id, trajectory_id, assembled_at, max_tokens, used_tokens, config_hash, text_hash, record, expires_at
--   gives: ordinal
INSERT INTO "context_window" ("ordinal", "window_id", "trajectory_id", "assembled_at", "max_tokens", "used_tokens", "config_hash", "text_hash", "record", "expires_at") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10) RETURNING "ordinal";

-- context_window.insert_or_ignore
--   takes: ordinal, window_id, trajectory_id, assembled_at, max_tokens, used_tokens, config_hash, text_hash, record, expires_at
--   gives: ordinal
INSERT INTO "context_window" ("ordinal", "window_id", "trajectory_id", "assembled_at", "max_tokens", "used_tokens", "config_hash", "text_hash", "record", "expires_at") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10) ON CONFLICT DO NOTHING RETURNING "ordinal";

-- context_window.upsert
--   takes: ordinal, window_id, trajectory_id, assembled_at, max_tokens, used_tokens, config_hash, text_hash, record, expires_at
--   gives: ordinal
INSERT INTO "context_window" ("ordinal", "window_id", "trajectory_id", "assembled_at", "max_tokens", "used_tokens", "config_hash", "text_hash", "record", "expires_at") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10) ON CONFLICT ("window_id") DO UPDATE SET "trajectory_id" = excluded."trajectory_id", "assembled_at" = excluded."assembled_at", "max_tokens" = excluded."max_tokens", "used_tokens" = excluded."used_tokens", "config_hash" = excluded."config_hash", "text_hash" = excluded."text_hash", "record" = excluded."record", "expires_at" = excluded."expires_at" RETURNING "ordinal";

-- context_window.get
--   takes: window_id
--   gives: ordinal, window_id, trajectory_id, assembled_at, max_tokens, used_tokens, config_hash, text_hash, record, expires_at
SELECT "ordinal", "window_id", "trajectory_id", "assembled_at", "max_tokens", "used_tokens", "config_hash", "text_hash", "record", "expires_at" FROM "context_window" WHERE "window_id" = ?1;

-- context_window.delete
--   takes: window_id
DELETE FROM "context_window" WHERE "window_id" = ?1;

-- context_window.count
--   takes: nothing
--   gives: count
SELECT count(*) FROM "context_window";

-- context_window.page
--   takes: ordinal, limit
--   gives: ordinal, window_id, trajectory_id, assembled_at, max_tokens, used_tokens, config_hash, text_hash, record, expires_at
SELECT "ordinal", "window_id", "trajectory_id", "assembled_at", "max_tokens", "used_tokens", "config_hash", "text_hash", "record", "expires_at" FROM "context_window" WHERE "ordinal" > ?1 ORDER BY "ordinal" LIMIT ?2;

-- context_window.get_many
--   takes: ordinals
--   gives: ordinal, window_id, trajectory_id, assembled_at, max_tokens, used_tokens, config_hash, text_hash, record, expires_at
SELECT "ordinal", "window_id", "trajectory_id", "assembled_at", "max_tokens", "used_tokens", "config_hash", "text_hash", "record", "expires_at" FROM "context_window" WHERE "ordinal" IN (SELECT value FROM json_each(?1));

-- context_window.list_by_trajectory
--   takes: trajectory_id, limit
--   gives: ordinal, window_id, trajectory_id, assembled_at, max_tokens, used_tokens, config_hash, text_hash, record, expires_at
SELECT "ordinal", "window_id", "trajectory_id", "assembled_at", "max_tokens", "used_tokens", "config_hash", "text_hash", "record", "expires_at" FROM "context_window" WHERE "trajectory_id" = ?1 ORDER BY "assembled_at" DESC, "ordinal" DESC LIMIT ?2;

-- context_window.list_expiring
--   takes: limit
--   gives: ordinal, window_id, trajectory_id, assembled_at, max_tokens, used_tokens, config_hash, text_hash, record, expires_at
SELECT "ordinal", "window_id", "trajectory_id", "assembled_at", "max_tokens", "used_tokens", "config_hash", "text_hash", "record", "expires_at" FROM "context_window" WHERE "expires_at" IS NOT NULL ORDER BY "expires_at" LIMIT ?1;

-- context_window.list_oldest
--   takes: limit
--   gives: ordinal, window_id, trajectory_id, assembled_at, max_tokens, used_tokens, config_hash, text_hash, record, expires_at
SELECT "ordinal", "window_id", "trajectory_id", "assembled_at", "max_tokens", "used_tokens", "config_hash", "text_hash", "record", "expires_at" FROM "context_window" ORDER BY "assembled_at" LIMIT ?1;

-- ===== content_version

CREATE TABLE "content_version" (
  "owner_type" TEXT NOT NULL,
  "owner_ordinal" INTEGER NOT NULL,
  "owner_version" INTEGER NOT NULL,
  "owner_id" BLOB NOT NULL CHECK (length("owner_id") = 16),
  "body" TEXT NOT NULL,
  "replaced_at" INTEGER NOT NULL,
  "trajectory_id" BLOB CHECK (length("trajectory_id") = 16),
  PRIMARY KEY ("owner_type", "owner_ordinal", "owner_version")
) STRICT;

CREATE INDEX "ix_content_version_list_by_owner" ON "content_version" ("owner_id", "owner_version");

CREATE INDEX "ix_content_version_list_oldest" ON "content_version" ("replaced_at");

-- content_version.insert
--   takes: owner_type, owner_ordinal, owner_version, owner_id, body, replaced_at, trajectory_id
INSERT INTO "content_version" ("owner_type", "owner_ordinal", "owner_version", "owner_id", "body", "replaced_at", "trajectory_id") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7);

-- content_version.insert_or_ignore
--   takes: owner_type, owner_ordinal, owner_version, owner_id, body, replaced_at, trajectory_id
INSERT INTO "content_version" ("owner_type", "owner_ordinal", "owner_version", "owner_id", "body", "replaced_at", "trajectory_id") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT DO NOTHING;

-- content_version.upsert
--   takes: owner_type, owner_ordinal, owner_version, owner_id, body, replaced_at, trajectory_id
INSERT INTO "content_version" ("owner_type", "owner_ordinal", "owner_version", "owner_id", "body", "replaced_at", "trajectory_id") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT ("owner_type", "owner_ordinal", "owner_version") DO UPDATE SET "owner_id" = excluded."owner_id", "body" = excluded."body", "replaced_at" = excluded."replaced_at", "trajectory_id" = excluded."trajectory_id";

-- content_version.get
--   takes: owner_type, owner_ordinal, owner_version
--   gives: owner_type, owner_ordinal, owner_version, owner_id, body, replaced_at, trajectory_id
SELECT "owner_type", "owner_ordinal", "owner_version", "owner_id", "body", "replaced_at", "trajectory_id" FROM "content_version" WHERE "owner_type" = ?1 AND "owner_ordinal" = ?2 AND "owner_version" = ?3;

-- content_version.delete
--   takes: owner_type, owner_ordinal, owner_version
DELETE FROM "content_version" WHERE "owner_type" = ?1 AND "owner_ordinal" = ?2 AND "owner_version" = ?3;

-- content_version.count
--   takes: nothing
--   gives: count
SELECT count(*) FROM "content_version";

-- content_version.page
--   takes: owner_type, owner_ordinal, owner_version, limit
--   gives: owner_type, owner_ordinal, owner_version, owner_id, body, replaced_at, trajectory_id
SELECT "owner_type", "owner_ordinal", "owner_version", "owner_id", "body", "replaced_at", "trajectory_id" FROM "content_version" WHERE ("owner_type", "owner_ordinal", "owner_version") > (?1, ?2, ?3) ORDER BY "owner_type", "owner_ordinal", "owner_version" LIMIT ?4;

-- content_version.list_by_owner
--   takes: owner_id
--   gives: owner_type, owner_ordinal, owner_version, owner_id, body, replaced_at, trajectory_id
SELECT "owner_type", "owner_ordinal", "owner_version", "owner_id", "body", "replaced_at", "trajectory_id" FROM "content_version" WHERE "owner_id" = ?1 ORDER BY "owner_version";

-- content_version.list_oldest
--   takes: limit
--   gives: owner_type, owner_ordinal, owner_version, owner_id, body, replaced_at, trajectory_id
SELECT "owner_type", "owner_ordinal", "owner_version", "owner_id", "body", "replaced_at", "trajectory_id" FROM "content_version" ORDER BY "replaced_at" LIMIT ?1;

-- ===== pending_injection

CREATE TABLE "pending_injection" (
  "ordinal" INTEGER PRIMARY KEY AUTOINCREMENT,
  "injection_id" BLOB NOT NULL CHECK (length("injection_id") = 16),
  "trajectory_id" BLOB NOT NULL CHECK (length("trajectory_id") = 16),
  "origin" TEXT NOT NULL,
  "memory" TEXT NOT NULL,
  "kind" TEXT NOT NULL,
  "created_at" INTEGER NOT NULL,
  "count" INTEGER CHECK ("count" >= 1),
  "min_relevance" REAL CHECK ("min_relevance" >= 0) CHECK ("min_relevance" <= 1),
  "version" INTEGER NOT NULL CHECK ("version" >= 1),
  UNIQUE ("injection_id"),
  FOREIGN KEY ("trajectory_id") REFERENCES "trajectory" ("trajectory_id") ON DELETE CASCADE
) STRICT;

CREATE INDEX "ix_pending_injection_list_by_trajectory" ON "pending_injection" ("trajectory_id");

-- pending_injection.insert
--   takes: ordinal, injection_id, trajectory_id, origin, memory, kind, created_at, count, min_relevance, version
--   gives: ordinal
INSERT INTO "pending_injection" ("ordinal", "injection_id", "trajectory_id", "origin", "memory", "kind", "created_at", "count", "min_relevance", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10) RETURNING "ordinal";

-- pending_injection.insert_or_ignore
--   takes: ordinal, injection_id, trajectory_id, origin, memory, kind, created_at, count, min_relevance, version
--   gives: ordinal
INSERT INTO "pending_injection" ("ordinal", "injection_id", "trajectory_id", "origin", "memory", "kind", "created_at", "count", "min_relevance", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10) ON CONFLICT DO NOTHING RETURNING "ordinal";

-- pending_injection.upsert
--   takes: ordinal, injection_id, trajectory_id, origin, memory, kind, created_at, count, min_relevance, version
--   gives: ordinal
INSERT INTO "pending_injection" ("ordinal", "injection_id", "trajectory_id", "origin", "memory", "kind", "created_at", "count", "min_relevance", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10) ON CONFLICT ("injection_id") DO UPDATE SET "trajectory_id" = excluded."trajectory_id", "origin" = excluded."origin", "memory" = excluded."memory", "kind" = excluded."kind", "created_at" = excluded."created_at", "count" = excluded."count", "min_relevance" = excluded."min_relevance", "version" = excluded."version" RETURNING "ordinal";

-- pending_injection.get
--   takes: injection_id
--   gives: ordinal, injection_id, trajectory_id, origin, memory, kind, created_at, count, min_relevance, version
SELECT "ordinal", "injection_id", "trajectory_id", "origin", "memory", "kind", "created_at", "count", "min_relevance", "version" FROM "pending_injection" WHERE "injection_id" = ?1;

-- pending_injection.update
--   takes: trajectory_id, origin, memory, kind, created_at, count, min_relevance, version, injection_id, version
UPDATE "pending_injection" SET "trajectory_id" = ?1, "origin" = ?2, "memory" = ?3, "kind" = ?4, "created_at" = ?5, "count" = ?6, "min_relevance" = ?7, "version" = ?8 WHERE "injection_id" = ?9 AND "version" = ?10;

-- pending_injection.delete
--   takes: injection_id
DELETE FROM "pending_injection" WHERE "injection_id" = ?1;

-- pending_injection.count
--   takes: nothing
--   gives: count
SELECT count(*) FROM "pending_injection";

-- pending_injection.page
--   takes: ordinal, limit
--   gives: ordinal, injection_id, trajectory_id, origin, memory, kind, created_at, count, min_relevance, version
SELECT "ordinal", "injection_id", "trajectory_id", "origin", "memory", "kind", "created_at", "count", "min_relevance", "version" FROM "pending_injection" WHERE "ordinal" > ?1 ORDER BY "ordinal" LIMIT ?2;

-- pending_injection.get_many
--   takes: ordinals
--   gives: ordinal, injection_id, trajectory_id, origin, memory, kind, created_at, count, min_relevance, version
SELECT "ordinal", "injection_id", "trajectory_id", "origin", "memory", "kind", "created_at", "count", "min_relevance", "version" FROM "pending_injection" WHERE "ordinal" IN (SELECT value FROM json_each(?1));

-- pending_injection.list_by_trajectory
--   takes: trajectory_id
--   gives: ordinal, injection_id, trajectory_id, origin, memory, kind, created_at, count, min_relevance, version
SELECT "ordinal", "injection_id", "trajectory_id", "origin", "memory", "kind", "created_at", "count", "min_relevance", "version" FROM "pending_injection" WHERE "trajectory_id" = ?1 ORDER BY "ordinal";

-- pending_injection.referring_trajectory_id
--   takes: trajectory_id
--   gives: ordinal, injection_id, trajectory_id, origin, memory, kind, created_at, count, min_relevance, version
SELECT "ordinal", "injection_id", "trajectory_id", "origin", "memory", "kind", "created_at", "count", "min_relevance", "version" FROM "pending_injection" WHERE "trajectory_id" = ?1 ORDER BY "ordinal";

-- ===== lock

CREATE TABLE "lock" (
  "ordinal" INTEGER PRIMARY KEY AUTOINCREMENT,
  "lock_id" BLOB NOT NULL CHECK (length("lock_id") = 16),
  "resource" TEXT NOT NULL,
  "holder" TEXT NOT NULL,
  "mode" TEXT NOT NULL CHECK ("mode" IN ('exclusive', 'shared')),
  "token" INTEGER NOT NULL CHECK ("token" >= 1),
  "acquired_at" INTEGER NOT NULL,
  "expires_at" INTEGER NOT NULL,
  "version" INTEGER NOT NULL CHECK ("version" >= 1),
  UNIQUE ("lock_id")
) STRICT;

CREATE INDEX "ix_lock_list_by_resource" ON "lock" ("resource", "token");

CREATE INDEX "ix_lock_list_expiring" ON "lock" ("expires_at");

-- lock.insert
--   takes: ordinal, lock_id, resource, holder, mode, token, acquired_at, expires_at, version
--   gives: ordinal
INSERT INTO "lock" ("ordinal", "lock_id", "resource", "holder", "mode", "token", "acquired_at", "expires_at", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) RETURNING "ordinal";

-- lock.insert_or_ignore
--   takes: ordinal, lock_id, resource, holder, mode, token, acquired_at, expires_at, version
--   gives: ordinal
INSERT INTO "lock" ("ordinal", "lock_id", "resource", "holder", "mode", "token", "acquired_at", "expires_at", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) ON CONFLICT DO NOTHING RETURNING "ordinal";

-- lock.upsert
--   takes: ordinal, lock_id, resource, holder, mode, token, acquired_at, expires_at, version
--   gives: ordinal
INSERT INTO "lock" ("ordinal", "lock_id", "resource", "holder", "mode", "token", "acquired_at", "expires_at", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) ON CONFLICT ("lock_id") DO UPDATE SET "resource" = excluded."resource", "holder" = excluded."holder", "mode" = excluded."mode", "token" = excluded."token", "acquired_at" = excluded."acquired_at", "expires_at" = excluded."expires_at", "version" = excluded."version" RETURNING "ordinal";

-- lock.get
--   takes: lock_id
--   gives: ordinal, lock_id, resource, holder, mode, token, acquired_at, expires_at, version
SELECT "ordinal", "lock_id", "resource", "holder", "mode", "token", "acquired_at", "expires_at", "version" FROM "lock" WHERE "lock_id" = ?1;

-- lock.update
--   takes: resource, holder, mode, token, acquired_at, expires_at, version, lock_id, version
UPDATE "lock" SET "resource" = ?1, "holder" = ?2, "mode" = ?3, "token" = ?4, "acquired_at" = ?5, "expires_at" = ?6, "version" = ?7 WHERE "lock_id" = ?8 AND "version" = ?9;

-- lock.delete
--   takes: lock_id
DELETE FROM "lock" WHERE "lock_id" = ?1;

-- lock.count
--   takes: nothing
--   gives: count
SELECT count(*) FROM "lock";

-- lock.page
--   takes: ordinal, limit
--   gives: ordinal, lock_id, resource, holder, mode, token, acquired_at, expires_at, version
SELECT "ordinal", "lock_id", "resource", "holder", "mode", "token", "acquired_at", "expires_at", "version" FROM "lock" WHERE "ordinal" > ?1 ORDER BY "ordinal" LIMIT ?2;

-- lock.get_many
--   takes: ordinals
--   gives: ordinal, lock_id, resource, holder, mode, token, acquired_at, expires_at, version
SELECT "ordinal", "lock_id", "resource", "holder", "mode", "token", "acquired_at", "expires_at", "version" FROM "lock" WHERE "ordinal" IN (SELECT value FROM json_each(?1));

-- lock.list_by_resource
--   takes: resource
--   gives: ordinal, lock_id, resource, holder, mode, token, acquired_at, expires_at, version
SELECT "ordinal", "lock_id", "resource", "holder", "mode", "token", "acquired_at", "expires_at", "version" FROM "lock" WHERE "resource" = ?1 ORDER BY "token";

-- lock.list_expiring
--   takes: limit
--   gives: ordinal, lock_id, resource, holder, mode, token, acquired_at, expires_at, version
SELECT "ordinal", "lock_id", "resource", "holder", "mode", "token", "acquired_at", "expires_at", "version" FROM "lock" ORDER BY "expires_at" LIMIT ?1;

-- ===== event

CREATE TABLE "event" (
  "ordinal" INTEGER PRIMARY KEY AUTOINCREMENT,
  "event_id" BLOB NOT NULL CHECK (length("event_id") = 16),
  "family" TEXT NOT NULL CHECK ("family" IN ('trace', 'cognition', 'activity', 'audit', 'importance')),
  "event_type" TEXT NOT NULL,
  "created_at" INTEGER NOT NULL,
  "trajectory_id" BLOB CHECK (length("trajectory_id") = 16),
  "scope_id" BLOB CHECK (length("scope_id") = 16),
  "subject_type" TEXT,
  "subject_id" BLOB CHECK (length("subject_id") = 16),
  "principal" TEXT,
  "payload" TEXT NOT NULL CHECK (json_valid("payload")),
  "duration_ms" INTEGER CHECK ("duration_ms" >= 0),
  UNIQUE ("event_id")
) STRICT;

CREATE INDEX "ix_event_list_by_trajectory" ON "event" ("trajectory_id") WHERE "trajectory_id" IS NOT NULL;

CREATE INDEX "ix_event_list_by_trajectory_and_type" ON "event" ("trajectory_id", "event_type") WHERE "trajectory_id" IS NOT NULL;

CREATE INDEX "ix_event_list_by_subject" ON "event" ("subject_id") WHERE "subject_id" IS NOT NULL;

CREATE INDEX "ix_event_list_oldest" ON "event" ("family", "created_at");

-- event.insert
--   takes: ordinal, event_id, family, event_type, created_at, trajectory_id, scope_id, subject_type, subject_id, principal, payload, duration_ms
--   gives: ordinal
INSERT INTO "event" ("ordinal", "event_id", "family", "event_type", "created_at", "trajectory_id", "scope_id", "subject_type", "subject_id", "principal", "payload", "duration_ms") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12) RETURNING "ordinal";

-- event.insert_or_ignore
--   takes: ordinal, event_id, family, event_type, created_at, trajectory_id, scope_id, subject_type, subject_id, principal, payload, duration_ms
--   gives: ordinal
INSERT INTO "event" ("ordinal", "event_id", "family", "event_type", "created_at", "trajectory_id", "scope_id", "subject_type", "subject_id", "principal", "payload", "duration_ms") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12) ON CONFLICT DO NOTHING RETURNING "ordinal";

-- event.upsert
--   takes: ordinal, event_id, family, event_type, created_at, trajectory_id, scope_id, subject_type, subject_id, principal, payload, duration_ms
--   gives: ordinal
INSERT INTO "event" ("ordinal", "event_id", "family", "event_type", "created_at", "trajectory_id", "scope_id", "subject_type", "subject_id", "principal", "payload", "duration_ms") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12) ON CONFLICT ("event_id") DO UPDATE SET "family" = excluded."family", "event_type" = excluded."event_type", "created_at" = excluded."created_at", "trajectory_id" = excluded."trajectory_id", "scope_id" = excluded."scope_id", "subject_type" = excluded."subject_type", "subject_id" = excluded."subject_id", "principal" = excluded."principal", "payload" = excluded."payload", "duration_ms" = excluded."duration_ms" RETURNING "ordinal";

-- event.get
--   takes: event_id
--   gives: ordinal, event_id, family, event_type, created_at, trajectory_id, scope_id, subject_type, subject_id, principal, payload, duration_ms
SELECT "ordinal", "event_id", "family", "event_type", "created_at", "trajectory_id", "scope_id", "subject_type", "subject_id", "principal", "payload", "duration_ms" FROM "event" WHERE "event_id" = ?1;

-- event.delete
--   takes: event_id
DELETE FROM "event" WHERE "event_id" = ?1;

-- event.count
--   takes: nothing
--   gives: count
SELECT count(*) FROM "event";

-- event.page
--   takes: ordinal, limit
--   gives: ordinal, event_id, family, event_type, created_at, trajectory_id, scope_id, subject_type, subject_id, principal, payload, duration_ms
SELECT "ordinal", "event_id", "family", "event_type", "created_at", "trajectory_id", "scope_id", "subject_type", "subject_id", "principal", "payload", "duration_ms" FROM "event" WHERE "ordinal" > ?1 ORDER BY "ordinal" LIMIT ?2;

-- event.get_many
--   takes: ordinals
--   gives: ordinal, event_id, family, event_type, created_at, trajectory_id, scope_id, subject_type, subject_id, principal, payload, duration_ms
SELECT "ordinal", "event_id", "family", "event_type", "created_at", "trajectory_id", "scope_id", "subject_type", "subject_id", "principal", "payload", "duration_ms" FROM "event" WHERE "ordinal" IN (SELECT value FROM json_each(?1));

-- event.list_by_trajectory
--   takes: trajectory_id, limit
--   gives: ordinal, event_id, family, event_type, created_at, trajectory_id, scope_id, subject_type, subject_id, principal, payload, duration_ms
SELECT "ordinal", "event_id", "family", "event_type", "created_at", "trajectory_id", "scope_id", "subject_type", "subject_id", "principal", "payload", "duration_ms" FROM "event" WHERE "trajectory_id" = ?1 AND "trajectory_id" IS NOT NULL ORDER BY "ordinal" DESC LIMIT ?2;

-- event.list_by_trajectory_and_type
--   takes: trajectory_id, event_type, limit
--   gives: ordinal, event_id, family, event_type, created_at, trajectory_id, scope_id, subject_type, subject_id, principal, payload, duration_ms
SELECT "ordinal", "event_id", "family", "event_type", "created_at", "trajectory_id", "scope_id", "subject_type", "subject_id", "principal", "payload", "duration_ms" FROM "event" WHERE "trajectory_id" = ?1 AND "event_type" = ?2 AND "trajectory_id" IS NOT NULL ORDER BY "ordinal" DESC LIMIT ?3;

-- event.list_by_subject
--   takes: subject_id
--   gives: ordinal, event_id, family, event_type, created_at, trajectory_id, scope_id, subject_type, subject_id, principal, payload, duration_ms
SELECT "ordinal", "event_id", "family", "event_type", "created_at", "trajectory_id", "scope_id", "subject_type", "subject_id", "principal", "payload", "duration_ms" FROM "event" WHERE "subject_id" = ?1 AND "subject_id" IS NOT NULL ORDER BY "ordinal";

-- event.list_oldest
--   takes: family, limit
--   gives: ordinal, event_id, family, event_type, created_at, trajectory_id, scope_id, subject_type, subject_id, principal, payload, duration_ms
SELECT "ordinal", "event_id", "family", "event_type", "created_at", "trajectory_id", "scope_id", "subject_type", "subject_id", "principal", "payload", "duration_ms" FROM "event" WHERE "family" = ?1 ORDER BY "created_at" LIMIT ?2;

-- ===== change

CREATE TABLE "change" (
  "sequence" INTEGER PRIMARY KEY,
  "writer" BLOB NOT NULL CHECK (length("writer") = 16),
  "entries" BLOB NOT NULL,
  "created_at" INTEGER NOT NULL
) STRICT;

-- change.insert
--   takes: sequence, writer, entries, created_at
INSERT INTO "change" ("sequence", "writer", "entries", "created_at") VALUES (?1, ?2, ?3, ?4);

-- change.insert_or_ignore
--   takes: sequence, writer, entries, created_at
INSERT INTO "change" ("sequence", "writer", "entries", "created_at") VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO NOTHING;

-- change.upsert
--   takes: sequence, writer, entries, created_at
INSERT INTO "change" ("sequence", "writer", "entries", "created_at") VALUES (?1, ?2, ?3, ?4) ON CONFLICT ("sequence") DO UPDATE SET "writer" = excluded."writer", "entries" = excluded."entries", "created_at" = excluded."created_at";

-- change.get
--   takes: sequence
--   gives: sequence, writer, entries, created_at
SELECT "sequence", "writer", "entries", "created_at" FROM "change" WHERE "sequence" = ?1;

-- change.delete
--   takes: sequence
DELETE FROM "change" WHERE "sequence" = ?1;

-- change.count
--   takes: nothing
--   gives: count
SELECT count(*) FROM "change";

-- change.page
--   takes: sequence, limit
--   gives: sequence, writer, entries, created_at
SELECT "sequence", "writer", "entries", "created_at" FROM "change" WHERE "sequence" > ?1 ORDER BY "sequence" LIMIT ?2;

-- ===== erasure

CREATE TABLE "erasure" (
  "ordinal" INTEGER PRIMARY KEY AUTOINCREMENT,
  "erasure_id" BLOB NOT NULL CHECK (length("erasure_id") = 16),
  "kind" TEXT NOT NULL CHECK ("kind" IN ('subject', 'trajectory', 'store')),
  "counts" TEXT NOT NULL CHECK (json_valid("counts")),
  "begun_at" INTEGER NOT NULL,
  "finished_at" INTEGER,
  "version" INTEGER NOT NULL CHECK ("version" >= 1),
  UNIQUE ("erasure_id")
) STRICT;

CREATE INDEX "ix_erasure_list_unfinished" ON "erasure" ("begun_at") WHERE "finished_at" IS NULL;

-- erasure.insert
--   takes: ordinal, erasure_id, kind, counts, begun_at, finished_at, version
--   gives: ordinal
INSERT INTO "erasure" ("ordinal", "erasure_id", "kind", "counts", "begun_at", "finished_at", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) RETURNING "ordinal";

-- erasure.insert_or_ignore
--   takes: ordinal, erasure_id, kind, counts, begun_at, finished_at, version
--   gives: ordinal
INSERT INTO "erasure" ("ordinal", "erasure_id", "kind", "counts", "begun_at", "finished_at", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT DO NOTHING RETURNING "ordinal";

-- erasure.upsert
--   takes: ordinal, erasure_id, kind, counts, begun_at, finished_at, version
--   gives: ordinal
INSERT INTO "erasure" ("ordinal", "erasure_id", "kind", "counts", "begun_at", "finished_at", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT ("erasure_id") DO UPDATE SET "kind" = excluded."kind", "counts" = excluded."counts", "begun_at" = excluded."begun_at", "finished_at" = excluded."finished_at", "version" = excluded."version" RETURNING "ordinal";

-- erasure.get
--   takes: erasure_id
--   gives: ordinal, erasure_id, kind, counts, begun_at, finished_at, version
SELECT "ordinal", "erasure_id", "kind", "counts", "begun_at", "finished_at", "version" FROM "erasure" WHERE "erasure_id" = ?1;

-- erasure.update
--   takes: kind, counts, begun_at, finished_at, version, erasure_id, version
UPDATE "erasure" SET "kind" = ?1, "counts" = ?2, "begun_at" = ?3, "finished_at" = ?4, "version" = ?5 WHERE "erasure_id" = ?6 AND "version" = ?7;

-- erasure.delete
--   takes: erasure_id
DELETE FROM "erasure" WHERE "erasure_id" = ?1;

-- erasure.count
--   takes: nothing
--   gives: count
SELECT count(*) FROM "erasure";

-- erasure.page
--   takes: ordinal, limit
--   gives: ordinal, erasure_id, kind, counts, begun_at, finished_at, version
SELECT "ordinal", "erasure_id", "kind", "counts", "begun_at", "finished_at", "version" FROM "erasure" WHERE "ordinal" > ?1 ORDER BY "ordinal" LIMIT ?2;

-- erasure.get_many
--   takes: ordinals
--   gives: ordinal, erasure_id, kind, counts, begun_at, finished_at, version
SELECT "ordinal", "erasure_id", "kind", "counts", "begun_at", "finished_at", "version" FROM "erasure" WHERE "ordinal" IN (SELECT value FROM json_each(?1));

-- erasure.list_unfinished
--   takes: nothing
--   gives: ordinal, erasure_id, kind, counts, begun_at, finished_at, version
SELECT "ordinal", "erasure_id", "kind", "counts", "begun_at", "finished_at", "version" FROM "erasure" WHERE "finished_at" IS NULL ORDER BY "begun_at";

-- ===== policy_run

CREATE TABLE "policy_run" (
  "ordinal" INTEGER PRIMARY KEY AUTOINCREMENT,
  "rule_id" BLOB NOT NULL CHECK (length("rule_id") = 16),
  "covered_at" INTEGER NOT NULL,
  "due_at" INTEGER,
  "actions_done" INTEGER NOT NULL CHECK ("actions_done" >= 0),
  "attempts" INTEGER NOT NULL CHECK ("attempts" >= 0),
  "version" INTEGER NOT NULL CHECK ("version" >= 1),
  UNIQUE ("rule_id")
) STRICT;

-- policy_run.insert
--   takes: ordinal, rule_id, covered_at, due_at, actions_done, attempts, version
--   gives: ordinal
INSERT INTO "policy_run" ("ordinal", "rule_id", "covered_at", "due_at", "actions_done", "attempts", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) RETURNING "ordinal";

-- policy_run.insert_or_ignore
--   takes: ordinal, rule_id, covered_at, due_at, actions_done, attempts, version
--   gives: ordinal
INSERT INTO "policy_run" ("ordinal", "rule_id", "covered_at", "due_at", "actions_done", "attempts", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT DO NOTHING RETURNING "ordinal";

-- policy_run.upsert
--   takes: ordinal, rule_id, covered_at, due_at, actions_done, attempts, version
--   gives: ordinal
INSERT INTO "policy_run" ("ordinal", "rule_id", "covered_at", "due_at", "actions_done", "attempts", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT ("rule_id") DO UPDATE SET "covered_at" = excluded."covered_at", "due_at" = excluded."due_at", "actions_done" = excluded."actions_done", "attempts" = excluded."attempts", "version" = excluded."version" RETURNING "ordinal";

-- policy_run.get
--   takes: rule_id
--   gives: ordinal, rule_id, covered_at, due_at, actions_done, attempts, version
SELECT "ordinal", "rule_id", "covered_at", "due_at", "actions_done", "attempts", "version" FROM "policy_run" WHERE "rule_id" = ?1;

-- policy_run.update
--   takes: covered_at, due_at, actions_done, attempts, version, rule_id, version
UPDATE "policy_run" SET "covered_at" = ?1, "due_at" = ?2, "actions_done" = ?3, "attempts" = ?4, "version" = ?5 WHERE "rule_id" = ?6 AND "version" = ?7;

-- policy_run.delete
--   takes: rule_id
DELETE FROM "policy_run" WHERE "rule_id" = ?1;

-- policy_run.count
--   takes: nothing
--   gives: count
SELECT count(*) FROM "policy_run";

-- policy_run.page
--   takes: ordinal, limit
--   gives: ordinal, rule_id, covered_at, due_at, actions_done, attempts, version
SELECT "ordinal", "rule_id", "covered_at", "due_at", "actions_done", "attempts", "version" FROM "policy_run" WHERE "ordinal" > ?1 ORDER BY "ordinal" LIMIT ?2;

-- policy_run.get_many
--   takes: ordinals
--   gives: ordinal, rule_id, covered_at, due_at, actions_done, attempts, version
SELECT "ordinal", "rule_id", "covered_at", "due_at", "actions_done", "attempts", "version" FROM "policy_run" WHERE "ordinal" IN (SELECT value FROM json_each(?1));

-- policy_run.list_all
--   takes: nothing
--   gives: ordinal, rule_id, covered_at, due_at, actions_done, attempts, version
SELECT "ordinal", "rule_id", "covered_at", "due_at", "actions_done", "attempts", "version" FROM "policy_run" ORDER BY "ordinal";

-- ===== pending_trigger

CREATE TABLE "pending_trigger" (
  "trigger_id" BLOB NOT NULL CHECK (length("trigger_id") = 16),
  "trajectory_id" BLOB NOT NULL CHECK (length("trajectory_id") = 16),
  "scope_id" BLOB CHECK (length("scope_id") = 16),
  "trigger" TEXT NOT NULL CHECK ("trigger" IN ('task_start', 'task_end', 'scope_close', 'turn', 'schedule')),
  "principal_kind" TEXT NOT NULL CHECK ("principal_kind" IN ('human', 'agent', 'system')),
  "principal_id" TEXT NOT NULL,
  "principal_role" TEXT CHECK ("principal_role" IN ('orchestrator', 'optimizer', 'reviewer', 'executor')),
  "principal_admin" INTEGER NOT NULL CHECK ("principal_admin" IN (0, 1)),
  "created_at" INTEGER NOT NULL,
  "begun_at" INTEGER NOT NULL,
  "attempts" INTEGER NOT NULL CHECK ("attempts" >= 0),
  "version" INTEGER NOT NULL CHECK ("version" >= 1),
  PRIMARY KEY ("trigger_id"),
  FOREIGN KEY ("trajectory_id") REFERENCES "trajectory" ("trajectory_id") ON DELETE CASCADE,
  FOREIGN KEY ("scope_id") REFERENCES "scope" ("scope_id") ON DELETE CASCADE
) STRICT;

CREATE INDEX "ix_pending_trigger_list_by_trajectory" ON "pending_trigger" ("trajectory_id", "trigger_id");

CREATE INDEX "ix_pending_trigger_list_by_scope" ON "pending_trigger" ("scope_id", "trigger_id") WHERE "scope_id" IS NOT NULL;

-- pending_trigger.insert
--   takes: trigger_id, trajectory_id, scope_id, trigger, principal_kind, principal_id, principal_role, principal_admin, created_at, begun_at, attempts, version
INSERT INTO "pending_trigger" ("trigger_id", "trajectory_id", "scope_id", "trigger", "principal_kind", "principal_id", "principal_role", "principal_admin", "created_at", "begun_at", "attempts", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12);

-- pending_trigger.insert_or_ignore
--   takes: trigger_id, trajectory_id, scope_id, trigger, principal_kind, principal_id, principal_role, principal_admin, created_at, begun_at, attempts, version
INSERT INTO "pending_trigger" ("trigger_id", "trajectory_id", "scope_id", "trigger", "principal_kind", "principal_id", "principal_role", "principal_admin", "created_at", "begun_at", "attempts", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12) ON CONFLICT DO NOTHING;

-- pending_trigger.upsert
--   takes: trigger_id, trajectory_id, scope_id, trigger, principal_kind, principal_id, principal_role, principal_admin, created_at, begun_at, attempts, version
INSERT INTO "pending_trigger" ("trigger_id", "trajectory_id", "scope_id", "trigger", "principal_kind", "principal_id", "principal_role", "principal_admin", "created_at", "begun_at", "attempts", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12) ON CONFLICT ("trigger_id") DO UPDATE SET "trajectory_id" = excluded."trajectory_id", "scope_id" = excluded."scope_id", "trigger" = excluded."trigger", "principal_kind" = excluded."principal_kind", "principal_id" = excluded."principal_id", "principal_role" = excluded."principal_role", "principal_admin" = excluded."principal_admin", "created_at" = excluded."created_at", "begun_at" = excluded."begun_at", "attempts" = excluded."attempts", "version" = excluded."version";

-- pending_trigger.get
--   takes: trigger_id
--   gives: trigger_id, trajectory_id, scope_id, trigger, principal_kind, principal_id, principal_role, principal_admin, created_at, begun_at, attempts, version
SELECT "trigger_id", "trajectory_id", "scope_id", "trigger", "principal_kind", "principal_id", "principal_role", "principal_admin", "created_at", "begun_at", "attempts", "version" FROM "pending_trigger" WHERE "trigger_id" = ?1;

-- pending_trigger.update
--   takes: trajectory_id, scope_id, trigger, principal_kind, principal_id, principal_role, principal_admin, created_at, begun_at, attempts, version, trigger_id, version
UPDATE "pending_trigger" SET "trajectory_id" = ?1, "scope_id" = ?2, "trigger" = ?3, "principal_kind" = ?4, "principal_id" = ?5, "principal_role" = ?6, "principal_admin" = ?7, "created_at" = ?8, "begun_at" = ?9, "attempts" = ?10, "version" = ?11 WHERE "trigger_id" = ?12 AND "version" = ?13;

-- pending_trigger.delete
--   takes: trigger_id
DELETE FROM "pending_trigger" WHERE "trigger_id" = ?1;

-- pending_trigger.count
--   takes: nothing
--   gives: count
SELECT count(*) FROM "pending_trigger";

-- pending_trigger.page
--   takes: trigger_id, limit
--   gives: trigger_id, trajectory_id, scope_id, trigger, principal_kind, principal_id, principal_role, principal_admin, created_at, begun_at, attempts, version
SELECT "trigger_id", "trajectory_id", "scope_id", "trigger", "principal_kind", "principal_id", "principal_role", "principal_admin", "created_at", "begun_at", "attempts", "version" FROM "pending_trigger" WHERE "trigger_id" > ?1 ORDER BY "trigger_id" LIMIT ?2;

-- pending_trigger.list_by_trajectory
--   takes: trajectory_id
--   gives: trigger_id, trajectory_id, scope_id, trigger, principal_kind, principal_id, principal_role, principal_admin, created_at, begun_at, attempts, version
SELECT "trigger_id", "trajectory_id", "scope_id", "trigger", "principal_kind", "principal_id", "principal_role", "principal_admin", "created_at", "begun_at", "attempts", "version" FROM "pending_trigger" WHERE "trajectory_id" = ?1 ORDER BY "trigger_id";

-- pending_trigger.list_by_scope
--   takes: scope_id
--   gives: trigger_id, trajectory_id, scope_id, trigger, principal_kind, principal_id, principal_role, principal_admin, created_at, begun_at, attempts, version
SELECT "trigger_id", "trajectory_id", "scope_id", "trigger", "principal_kind", "principal_id", "principal_role", "principal_admin", "created_at", "begun_at", "attempts", "version" FROM "pending_trigger" WHERE "scope_id" = ?1 AND "scope_id" IS NOT NULL ORDER BY "trigger_id";

-- ===== config_document

CREATE TABLE "config_document" (
  "config_hash" BLOB NOT NULL CHECK (length("config_hash") = 32),
  "kind" TEXT NOT NULL,
  "body" TEXT NOT NULL,
  "created_at" INTEGER NOT NULL,
  PRIMARY KEY ("config_hash")
) STRICT;

-- config_document.insert
--   takes: config_hash, kind, body, created_at
INSERT INTO "config_document" ("config_hash", "kind", "body", "created_at") VALUES (?1, ?2, ?3, ?4);

-- config_document.insert_or_ignore
--   takes: config_hash, kind, body, created_at
INSERT INTO "config_document" ("config_hash", "kind", "body", "created_at") VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO NOTHING;

-- config_document.upsert
--   takes: config_hash, kind, body, created_at
INSERT INTO "config_document" ("config_hash", "kind", "body", "created_at") VALUES (?1, ?2, ?3, ?4) ON CONFLICT ("config_hash") DO UPDATE SET "kind" = excluded."kind", "body" = excluded."body", "created_at" = excluded."created_at";

-- config_document.get
--   takes: config_hash
--   gives: config_hash, kind, body, created_at
SELECT "config_hash", "kind", "body", "created_at" FROM "config_document" WHERE "config_hash" = ?1;

-- config_document.delete
--   takes: config_hash
DELETE FROM "config_document" WHERE "config_hash" = ?1;

-- config_document.count
--   takes: nothing
--   gives: count
SELECT count(*) FROM "config_document";

-- config_document.page
--   takes: config_hash, limit
--   gives: config_hash, kind, body, created_at
SELECT "config_hash", "kind", "body", "created_at" FROM "config_document" WHERE "config_hash" > ?1 ORDER BY "config_hash" LIMIT ?2;

-- ===== memory_type

CREATE TABLE "memory_type" (
  "code" INTEGER NOT NULL CHECK ("code" >= 64),
  "name" TEXT NOT NULL,
  "definition" TEXT NOT NULL,
  "created_at" INTEGER NOT NULL,
  "updated_at" INTEGER NOT NULL,
  "retired_at" INTEGER,
  "version" INTEGER NOT NULL CHECK ("version" >= 1),
  PRIMARY KEY ("code")
) STRICT;

CREATE UNIQUE INDEX "uq_memory_type_name" ON "memory_type" ("name") WHERE "retired_at" IS NULL;

-- memory_type.insert
--   takes: code, name, definition, created_at, updated_at, retired_at, version
INSERT INTO "memory_type" ("code", "name", "definition", "created_at", "updated_at", "retired_at", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7);

-- memory_type.insert_or_ignore
--   takes: code, name, definition, created_at, updated_at, retired_at, version
INSERT INTO "memory_type" ("code", "name", "definition", "created_at", "updated_at", "retired_at", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT DO NOTHING;

-- memory_type.upsert
--   takes: code, name, definition, created_at, updated_at, retired_at, version
INSERT INTO "memory_type" ("code", "name", "definition", "created_at", "updated_at", "retired_at", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT ("code") DO UPDATE SET "name" = excluded."name", "definition" = excluded."definition", "created_at" = excluded."created_at", "updated_at" = excluded."updated_at", "retired_at" = excluded."retired_at", "version" = excluded."version";

-- memory_type.get
--   takes: code
--   gives: code, name, definition, created_at, updated_at, retired_at, version
SELECT "code", "name", "definition", "created_at", "updated_at", "retired_at", "version" FROM "memory_type" WHERE "code" = ?1;

-- memory_type.update
--   takes: name, definition, created_at, updated_at, retired_at, version, code, version
UPDATE "memory_type" SET "name" = ?1, "definition" = ?2, "created_at" = ?3, "updated_at" = ?4, "retired_at" = ?5, "version" = ?6 WHERE "code" = ?7 AND "version" = ?8;

-- memory_type.delete
--   takes: code
DELETE FROM "memory_type" WHERE "code" = ?1;

-- memory_type.count
--   takes: nothing
--   gives: count
SELECT count(*) FROM "memory_type";

-- memory_type.page
--   takes: code, limit
--   gives: code, name, definition, created_at, updated_at, retired_at, version
SELECT "code", "name", "definition", "created_at", "updated_at", "retired_at", "version" FROM "memory_type" WHERE "code" > ?1 ORDER BY "code" LIMIT ?2;

-- memory_type.list_all
--   takes: nothing
--   gives: code, name, definition, created_at, updated_at, retired_at, version
SELECT "code", "name", "definition", "created_at", "updated_at", "retired_at", "version" FROM "memory_type" ORDER BY "code";

-- memory_type.by_name
--   takes: name
--   gives: code, name, definition, created_at, updated_at, retired_at, version
SELECT "code", "name", "definition", "created_at", "updated_at", "retired_at", "version" FROM "memory_type" WHERE "name" = ?1 AND "retired_at" IS NULL;

-- ===== schema_migration

CREATE TABLE "schema_migration" (
  "schema_version" INTEGER NOT NULL,
  "name" TEXT NOT NULL,
  "checksum" BLOB NOT NULL CHECK (length("checksum") = 32),
  "min_reader_version" INTEGER NOT NULL,
  "min_writer_version" INTEGER NOT NULL,
  "epoch" TEXT NOT NULL,
  "applied_at" INTEGER NOT NULL,
  PRIMARY KEY ("schema_version")
) STRICT;

-- schema_migration.insert
--   takes: schema_version, name, checksum, min_reader_version, min_writer_version, epoch, applied_at
INSERT INTO "schema_migration" ("schema_version", "name", "checksum", "min_reader_version", "min_writer_version", "epoch", "applied_at") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7);

-- schema_migration.insert_or_ignore
--   takes: schema_version, name, checksum, min_reader_version, min_writer_version, epoch, applied_at
INSERT INTO "schema_migration" ("schema_version", "name", "checksum", "min_reader_version", "min_writer_version", "epoch", "applied_at") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT DO NOTHING;

-- schema_migration.upsert
--   takes: schema_version, name, checksum, min_reader_version, min_writer_version, epoch, applied_at
INSERT INTO "schema_migration" ("schema_version", "name", "checksum", "min_reader_version", "min_writer_version", "epoch", "applied_at") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT ("schema_version") DO UPDATE SET "name" = excluded."name", "checksum" = excluded."checksum", "min_reader_version" = excluded."min_reader_version", "min_writer_version" = excluded."min_writer_version", "epoch" = excluded."epoch", "applied_at" = excluded."applied_at";

-- schema_migration.get
--   takes: schema_version
--   gives: schema_version, name, checksum, min_reader_version, min_writer_version, epoch, applied_at
SELECT "schema_version", "name", "checksum", "min_reader_version", "min_writer_version", "epoch", "applied_at" FROM "schema_migration" WHERE "schema_version" = ?1;

-- schema_migration.delete
--   takes: schema_version
DELETE FROM "schema_migration" WHERE "schema_version" = ?1;

-- schema_migration.count
--   takes: nothing
--   gives: count
SELECT count(*) FROM "schema_migration";

-- schema_migration.page
--   takes: schema_version, limit
--   gives: schema_version, name, checksum, min_reader_version, min_writer_version, epoch, applied_at
SELECT "schema_version", "name", "checksum", "min_reader_version", "min_writer_version", "epoch", "applied_at" FROM "schema_migration" WHERE "schema_version" > ?1 ORDER BY "schema_version" LIMIT ?2;

-- schema_migration.list_all
--   takes: nothing
--   gives: schema_version, name, checksum, min_reader_version, min_writer_version, epoch, applied_at
SELECT "schema_version", "name", "checksum", "min_reader_version", "min_writer_version", "epoch", "applied_at" FROM "schema_migration" ORDER BY "schema_version";

-- ===== irregular

-- append.scope
--   takes: tokens_input, tokens_output, now, turns, scope_id
--   gives: ordinal, scope_id, trajectory_id, sequence_number, start_turn, opened_at, last_activity_at, end_turn, start_turn_id, end_turn_id, closed_at, summary, summary_tokens, trust, artifact_ids, checkpoint_id, next_sequence, turn_count, tokens_input, tokens_output, version
UPDATE scope SET next_sequence = next_sequence + ?4, turn_count = turn_count + ?4, tokens_input = tokens_input + ?1, tokens_output = tokens_output + ?2, last_activity_at = ?3, version = version + 1 WHERE scope_id = ?5 AND closed_at IS NULL RETURNING "ordinal", "scope_id", "trajectory_id", "sequence_number", "start_turn", "opened_at", "last_activity_at", "end_turn", "start_turn_id", "end_turn_id", "closed_at", "summary", "summary_tokens", "trust", "artifact_ids", "checkpoint_id", "next_sequence", "turn_count", "tokens_input", "tokens_output", "version";

-- append.trajectory
--   takes: tokens_input, tokens_output, now, turns, scope_id
--   gives: ordinal, trajectory_id, status, initiator_type, initiator_id, goal_hash, created_at, updated_at, last_activity_at, goal, tags, outcome, parent_trajectory_id, session_id, turn_count, tokens_input, tokens_output, version
UPDATE trajectory SET turn_count = turn_count + ?4, tokens_input = tokens_input + ?1, tokens_output = tokens_output + ?2, last_activity_at = ?3, version = version + 1 WHERE trajectory_id = (SELECT trajectory_id FROM scope WHERE scope_id = ?5) RETURNING "ordinal", "trajectory_id", "status", "initiator_type", "initiator_id", "goal_hash", "created_at", "updated_at", "last_activity_at", "goal", "tags", "outcome", "parent_trajectory_id", "session_id", "turn_count", "tokens_input", "tokens_output", "version";

-- artifact.expiring
--   takes: now
--   gives: ordinal, artifact_id, trajectory_id, scope_id, artifact_type, schema_version, content, content_hash, extraction_method, trust, ttl_kind, ttl_ms, token_count, created_at, updated_at, confidence, source_turn, session_id, expires_at, superseded_by, rolled_back_at, retired_at, occurred_at, idempotency_key, version
SELECT "ordinal", "artifact_id", "trajectory_id", "scope_id", "artifact_type", "schema_version", "content", "content_hash", "extraction_method", "trust", "ttl_kind", "ttl_ms", "token_count", "created_at", "updated_at", "confidence", "source_turn", "session_id", "expires_at", "superseded_by", "rolled_back_at", "retired_at", "occurred_at", "idempotency_key", "version" FROM artifact WHERE expires_at <= ?1 AND retired_at IS NULL AND rolled_back_at IS NULL;

-- change.bounds
--   takes: nothing
--   gives: first, last
SELECT coalesce(min(sequence), 0), coalesce(max(sequence), 0) FROM change;

-- change.insert
--   takes: writer, entries, created_at
--   gives: sequence
INSERT INTO change (writer, entries, created_at) VALUES (?1, ?2, ?3) RETURNING sequence;

-- change.prune
--   takes: older_than, keep_rows
DELETE FROM change WHERE created_at < ?1 AND sequence <= (SELECT sequence FROM change ORDER BY sequence DESC LIMIT 1 OFFSET max(?2, 1));

-- change.since
--   takes: sequence
--   gives: sequence, writer, entries
SELECT sequence, writer, entries FROM change WHERE sequence > ?1 ORDER BY sequence;

-- checkpoint.prune
--   takes: trajectory_id, keep
DELETE FROM checkpoint WHERE trajectory_id = ?1 AND ordinal NOT IN (SELECT ordinal FROM checkpoint WHERE trajectory_id = ?1 ORDER BY created_at DESC, ordinal DESC LIMIT ?2);

-- content.at
--   takes: owner_type, owner_ordinal, owner_version
--   gives: body
SELECT body FROM content_version WHERE owner_type = ?1 AND owner_ordinal = ?2 AND owner_version >= ?3 ORDER BY owner_version LIMIT 1;

-- content.owner
--   takes: owner_type, owner_ordinal
--   gives: owner_id
SELECT owner_id FROM content_version WHERE owner_type = ?1 AND owner_ordinal = ?2 LIMIT 1;

-- content.prune
--   takes: before
DELETE FROM content_version WHERE replaced_at < min(?1, coalesce((SELECT min(assembled_at) FROM context_window), 9223372036854775807));

-- embedding.drop_many
--   takes: ordinals
--   gives: ordinal, space_id, owner_type, owner_id, chunk_index, content_hash, vector, generated_at, version
DELETE FROM "embedding" WHERE ordinal IN (SELECT value FROM json_each(?1)) RETURNING "ordinal", "space_id", "owner_type", "owner_id", "chunk_index", "content_hash", "vector", "generated_at", "version";

-- embedding.drop_owner
--   takes: owner_id
--   gives: ordinal, space_id, owner_type, owner_id, chunk_index, content_hash, vector, generated_at, version
DELETE FROM "embedding" WHERE owner_id = ?1 RETURNING "ordinal", "space_id", "owner_type", "owner_id", "chunk_index", "content_hash", "vector", "generated_at", "version";

-- embedding.drop_some
--   takes: space_id, limit
DELETE FROM "embedding" WHERE ordinal IN (SELECT ordinal FROM "embedding" WHERE space_id = ?1 ORDER BY ordinal LIMIT ?2);

-- embedding.hashes_artifact
--   takes: space_id, after, limit
--   gives: ordinal, owner_id, head, content, content_hash
SELECT owner.ordinal, "artifact_id", NULL, "content", made.content_hash FROM "artifact" AS owner JOIN "embedding" AS made ON made.space_id = ?1 AND made.owner_id = owner."artifact_id" AND made.chunk_index = 0 WHERE length("content") > 0 AND "rolled_back_at" IS NULL AND "superseded_by" IS NULL AND "retired_at" IS NULL AND owner.ordinal > ?2 ORDER BY owner.ordinal LIMIT ?3;

-- embedding.hashes_note
--   takes: space_id, after, limit
--   gives: ordinal, owner_id, head, content, content_hash
SELECT owner.ordinal, "note_id", "entity", "content", made.content_hash FROM "note" AS owner JOIN "embedding" AS made ON made.space_id = ?1 AND made.owner_id = owner."note_id" AND made.chunk_index = 0 WHERE length("content") > 0 AND "archived_at" IS NULL AND "superseded_by" IS NULL AND owner.ordinal > ?2 ORDER BY owner.ordinal LIMIT ?3;

-- embedding.hashes_scope
--   takes: space_id, after, limit
--   gives: ordinal, owner_id, head, content, content_hash
SELECT owner.ordinal, "scope_id", NULL, "summary", made.content_hash FROM "scope" AS owner JOIN "embedding" AS made ON made.space_id = ?1 AND made.owner_id = owner."scope_id" AND made.chunk_index = 0 WHERE length("summary") > 0 AND TRUE AND owner.ordinal > ?2 ORDER BY owner.ordinal LIMIT ?3;

-- embedding.hashes_turn
--   takes: space_id, after, limit
--   gives: ordinal, owner_id, head, content, content_hash
SELECT owner.ordinal, "turn_id", "name", "content", made.content_hash FROM "turn" AS owner JOIN "embedding" AS made ON made.space_id = ?1 AND made.owner_id = owner."turn_id" AND made.chunk_index = 0 WHERE length("content") > 0 AND TRUE AND owner.ordinal > ?2 ORDER BY owner.ordinal LIMIT ?3;

-- embedding.of_space
--   takes: space_id
--   gives: owner_type, vectors, records
SELECT owner_type, count(*), count(DISTINCT owner_id) FROM "embedding" WHERE space_id = ?1 GROUP BY owner_type ORDER BY owner_type;

-- embedding.pending_artifact
--   takes: space_id, before, limit
--   gives: ordinal, owner_id, head, content
SELECT ordinal, "artifact_id", NULL, "content" FROM "artifact" AS owner WHERE length("content") > 0 AND "rolled_back_at" IS NULL AND "superseded_by" IS NULL AND "retired_at" IS NULL AND NOT EXISTS (SELECT 1 FROM "embedding" WHERE space_id = ?1 AND owner_id = owner."artifact_id") AND ordinal < ?2 ORDER BY ordinal DESC LIMIT ?3;

-- embedding.pending_note
--   takes: space_id, before, limit
--   gives: ordinal, owner_id, head, content
SELECT ordinal, "note_id", "entity", "content" FROM "note" AS owner WHERE length("content") > 0 AND "archived_at" IS NULL AND "superseded_by" IS NULL AND NOT EXISTS (SELECT 1 FROM "embedding" WHERE space_id = ?1 AND owner_id = owner."note_id") AND ordinal < ?2 ORDER BY ordinal DESC LIMIT ?3;

-- embedding.pending_scope
--   takes: space_id, before, limit
--   gives: ordinal, owner_id, head, content
SELECT ordinal, "scope_id", NULL, "summary" FROM "scope" AS owner WHERE length("summary") > 0 AND TRUE AND NOT EXISTS (SELECT 1 FROM "embedding" WHERE space_id = ?1 AND owner_id = owner."scope_id") AND ordinal < ?2 ORDER BY ordinal DESC LIMIT ?3;

-- embedding.pending_turn
--   takes: space_id, before, limit
--   gives: ordinal, owner_id, head, content
SELECT ordinal, "turn_id", "name", "content" FROM "turn" AS owner WHERE length("content") > 0 AND TRUE AND NOT EXISTS (SELECT 1 FROM "embedding" WHERE space_id = ?1 AND owner_id = owner."turn_id") AND ordinal < ?2 ORDER BY ordinal DESC LIMIT ?3;

-- embedding.pending_up_artifact
--   takes: space_id, after, limit
--   gives: ordinal, owner_id, head, content
SELECT ordinal, "artifact_id", NULL, "content" FROM "artifact" AS owner WHERE length("content") > 0 AND "rolled_back_at" IS NULL AND "superseded_by" IS NULL AND "retired_at" IS NULL AND NOT EXISTS (SELECT 1 FROM "embedding" WHERE space_id = ?1 AND owner_id = owner."artifact_id") AND ordinal > ?2 ORDER BY ordinal LIMIT ?3;

-- embedding.pending_up_note
--   takes: space_id, after, limit
--   gives: ordinal, owner_id, head, content
SELECT ordinal, "note_id", "entity", "content" FROM "note" AS owner WHERE length("content") > 0 AND "archived_at" IS NULL AND "superseded_by" IS NULL AND NOT EXISTS (SELECT 1 FROM "embedding" WHERE space_id = ?1 AND owner_id = owner."note_id") AND ordinal > ?2 ORDER BY ordinal LIMIT ?3;

-- embedding.pending_up_scope
--   takes: space_id, after, limit
--   gives: ordinal, owner_id, head, content
SELECT ordinal, "scope_id", NULL, "summary" FROM "scope" AS owner WHERE length("summary") > 0 AND TRUE AND NOT EXISTS (SELECT 1 FROM "embedding" WHERE space_id = ?1 AND owner_id = owner."scope_id") AND ordinal > ?2 ORDER BY ordinal LIMIT ?3;

-- embedding.pending_up_turn
--   takes: space_id, after, limit
--   gives: ordinal, owner_id, head, content
SELECT ordinal, "turn_id", "name", "content" FROM "turn" AS owner WHERE length("content") > 0 AND TRUE AND NOT EXISTS (SELECT 1 FROM "embedding" WHERE space_id = ?1 AND owner_id = owner."turn_id") AND ordinal > ?2 ORDER BY ordinal LIMIT ?3;

-- embedding.progress_artifact
--   takes: space_id
--   gives: total, pending
SELECT count(*), coalesce(sum(CASE WHEN EXISTS (SELECT 1 FROM "embedding" WHERE space_id = ?1 AND owner_id = owner."artifact_id") THEN 0 ELSE 1 END), 0) FROM "artifact" AS owner WHERE length("content") > 0 AND "rolled_back_at" IS NULL AND "superseded_by" IS NULL AND "retired_at" IS NULL;

-- embedding.progress_note
--   takes: space_id
--   gives: total, pending
SELECT count(*), coalesce(sum(CASE WHEN EXISTS (SELECT 1 FROM "embedding" WHERE space_id = ?1 AND owner_id = owner."note_id") THEN 0 ELSE 1 END), 0) FROM "note" AS owner WHERE length("content") > 0 AND "archived_at" IS NULL AND "superseded_by" IS NULL;

-- embedding.progress_scope
--   takes: space_id
--   gives: total, pending
SELECT count(*), coalesce(sum(CASE WHEN EXISTS (SELECT 1 FROM "embedding" WHERE space_id = ?1 AND owner_id = owner."scope_id") THEN 0 ELSE 1 END), 0) FROM "scope" AS owner WHERE length("summary") > 0 AND TRUE;

-- embedding.progress_turn
--   takes: space_id
--   gives: total, pending
SELECT count(*), coalesce(sum(CASE WHEN EXISTS (SELECT 1 FROM "embedding" WHERE space_id = ?1 AND owner_id = owner."turn_id") THEN 0 ELSE 1 END), 0) FROM "turn" AS owner WHERE length("content") > 0 AND TRUE;

-- embedding.spaceless
--   takes: after, limit
--   gives: ordinal
SELECT ordinal FROM "embedding" AS stray WHERE ordinal > ?1 AND NOT EXISTS (SELECT 1 FROM "embedding_space" WHERE space_id = stray.space_id) ORDER BY ordinal LIMIT ?2;

-- embedding.strays_artifact
--   takes: after, limit
--   gives: ordinal, is_gone
SELECT stray.ordinal, owner."artifact_id" IS NULL FROM "embedding" AS stray LEFT JOIN "artifact" AS owner ON owner."artifact_id" = stray.owner_id WHERE stray.owner_type = 'artifact' AND stray.ordinal > ?1 AND (owner."artifact_id" IS NULL OR NOT ("rolled_back_at" IS NULL AND "superseded_by" IS NULL AND "retired_at" IS NULL)) ORDER BY stray.ordinal LIMIT ?2;

-- embedding.strays_note
--   takes: after, limit
--   gives: ordinal, is_gone
SELECT stray.ordinal, owner."note_id" IS NULL FROM "embedding" AS stray LEFT JOIN "note" AS owner ON owner."note_id" = stray.owner_id WHERE stray.owner_type = 'note' AND stray.ordinal > ?1 AND (owner."note_id" IS NULL OR NOT ("archived_at" IS NULL AND "superseded_by" IS NULL)) ORDER BY stray.ordinal LIMIT ?2;

-- embedding.strays_scope
--   takes: after, limit
--   gives: ordinal, is_gone
SELECT stray.ordinal, owner."scope_id" IS NULL FROM "embedding" AS stray LEFT JOIN "scope" AS owner ON owner."scope_id" = stray.owner_id WHERE stray.owner_type = 'scope' AND stray.ordinal > ?1 AND (owner."scope_id" IS NULL) ORDER BY stray.ordinal LIMIT ?2;

-- embedding.strays_turn
--   takes: after, limit
--   gives: ordinal, is_gone
SELECT stray.ordinal, owner."turn_id" IS NULL FROM "embedding" AS stray LEFT JOIN "turn" AS owner ON owner."turn_id" = stray.owner_id WHERE stray.owner_type = 'turn' AND stray.ordinal > ?1 AND (owner."turn_id" IS NULL) ORDER BY stray.ordinal LIMIT ?2;

-- embedding.unmoved_artifact
--   takes: space_id, from_space_id, after, limit
--   gives: ordinal, owner_id
SELECT ordinal, "artifact_id" FROM "artifact" AS owner WHERE length("content") > 0 AND "rolled_back_at" IS NULL AND "superseded_by" IS NULL AND "retired_at" IS NULL AND NOT EXISTS (SELECT 1 FROM "embedding" WHERE space_id = ?1 AND owner_id = owner."artifact_id") AND EXISTS (SELECT 1 FROM "embedding" WHERE space_id = ?2 AND owner_id = owner."artifact_id") AND ordinal > ?3 ORDER BY ordinal LIMIT ?4;

-- embedding.unmoved_note
--   takes: space_id, from_space_id, after, limit
--   gives: ordinal, owner_id
SELECT ordinal, "note_id" FROM "note" AS owner WHERE length("content") > 0 AND "archived_at" IS NULL AND "superseded_by" IS NULL AND NOT EXISTS (SELECT 1 FROM "embedding" WHERE space_id = ?1 AND owner_id = owner."note_id") AND EXISTS (SELECT 1 FROM "embedding" WHERE space_id = ?2 AND owner_id = owner."note_id") AND ordinal > ?3 ORDER BY ordinal LIMIT ?4;

-- embedding.unmoved_scope
--   takes: space_id, from_space_id, after, limit
--   gives: ordinal, owner_id
SELECT ordinal, "scope_id" FROM "scope" AS owner WHERE length("summary") > 0 AND TRUE AND NOT EXISTS (SELECT 1 FROM "embedding" WHERE space_id = ?1 AND owner_id = owner."scope_id") AND EXISTS (SELECT 1 FROM "embedding" WHERE space_id = ?2 AND owner_id = owner."scope_id") AND ordinal > ?3 ORDER BY ordinal LIMIT ?4;

-- embedding.unmoved_turn
--   takes: space_id, from_space_id, after, limit
--   gives: ordinal, owner_id
SELECT ordinal, "turn_id" FROM "turn" AS owner WHERE length("content") > 0 AND TRUE AND NOT EXISTS (SELECT 1 FROM "embedding" WHERE space_id = ?1 AND owner_id = owner."turn_id") AND EXISTS (SELECT 1 FROM "embedding" WHERE space_id = ?2 AND owner_id = owner."turn_id") AND ordinal > ?3 ORDER BY ordinal LIMIT ?4;

-- embedding_cache.drop_some
--   takes: model_id, dimensions, limit
DELETE FROM "embedding_cache" WHERE (content_hash, model_id, dimensions) IN (SELECT content_hash, model_id, dimensions FROM "embedding_cache" WHERE model_id = ?1 AND dimensions = ?2 LIMIT ?3);

-- embedding_cache.prune
--   takes: older_than
DELETE FROM "embedding_cache" WHERE created_at < ?1;

-- event.drop_trace
--   takes: trajectory_id
DELETE FROM event WHERE trajectory_id = ?1 AND family = 'trace';

-- event.prune
--   takes: older_than
DELETE FROM event WHERE created_at < ?1 AND family <> 'audit';

-- lock.delete_expired
--   takes: now
DELETE FROM lock WHERE expires_at <= ?1 AND token < (SELECT max(token) FROM lock AS newer WHERE newer.resource = lock.resource);

-- lock.held
--   takes: resource, token, now
--   gives: token
SELECT token FROM lock WHERE resource = ?1 AND token = ?2 AND expires_at > ?3;

-- lock.last_token
--   takes: resource
--   gives: token
SELECT coalesce(max(token), 0) FROM lock WHERE resource = ?1;

-- lock.serialize
--   takes: resource
--   gives: serialized
SELECT ?1 IS NOT NULL;

-- memory.revision
--   takes: nothing
--   gives: memories, versions
SELECT count(*), coalesce(sum(version), 0) FROM memory_type;

-- note.of_trajectory
--   takes: trajectory_id
--   gives: ordinal, note_id, entity, entity_type, note_type, content, content_hash, fingerprint, confidence, trust, token_count, created_at, updated_at, importance, base_importance, valid_from, valid_until, source_trajectory_ids, occurred_at, namespace, tags, visible_to, created_by, superseded_by, archived_at, idempotency_key, version
SELECT "ordinal", "note_id", "entity", "entity_type", "note_type", "content", "content_hash", "fingerprint", "confidence", "trust", "token_count", "created_at", "updated_at", "importance", "base_importance", "valid_from", "valid_until", "source_trajectory_ids", "occurred_at", "namespace", "tags", "visible_to", "created_by", "superseded_by", "archived_at", "idempotency_key", "version" FROM note WHERE instr(source_trajectory_ids, ?1) % 16 = 1 ORDER BY created_at, ordinal;

-- scope.distrust
--   takes: trust, scope_id
--   gives: ordinal, scope_id, trajectory_id, sequence_number, start_turn, opened_at, last_activity_at, end_turn, start_turn_id, end_turn_id, closed_at, summary, summary_tokens, trust, artifact_ids, checkpoint_id, next_sequence, turn_count, tokens_input, tokens_output, version
UPDATE scope SET trust = ?1, version = version + 1 WHERE scope_id = ?2 AND instr('system user tool web', trust) < instr('system user tool web', ?1) RETURNING "ordinal", "scope_id", "trajectory_id", "sequence_number", "start_turn", "opened_at", "last_activity_at", "end_turn", "start_turn_id", "end_turn_id", "closed_at", "summary", "summary_tokens", "trust", "artifact_ids", "checkpoint_id", "next_sequence", "turn_count", "tokens_input", "tokens_output", "version";

-- scope.distrust_loaded
--   takes: after
--   gives: ordinal, scope_id, trajectory_id, sequence_number, start_turn, opened_at, last_activity_at, end_turn, start_turn_id, end_turn_id, closed_at, summary, summary_tokens, trust, artifact_ids, checkpoint_id, next_sequence, turn_count, tokens_input, tokens_output, version
WITH loaded AS (SELECT scope_id AS of_scope, max(instr('system user tool web', trust)) AS least FROM turn WHERE ordinal > ?1 GROUP BY scope_id) UPDATE scope SET trust = CASE least WHEN 1 THEN 'system' WHEN 8 THEN 'user' WHEN 13 THEN 'tool' WHEN 18 THEN 'web' END, version = version + 1 FROM loaded WHERE scope_id = of_scope AND instr('system user tool web', trust) < least RETURNING "ordinal", "scope_id", "trajectory_id", "sequence_number", "start_turn", "opened_at", "last_activity_at", "end_turn", "start_turn_id", "end_turn_id", "closed_at", "summary", "summary_tokens", "trust", "artifact_ids", "checkpoint_id", "next_sequence", "turn_count", "tokens_input", "tokens_output", "version";

-- scope.next_sequence
--   takes: trajectory_id
--   gives: sequence
SELECT coalesce(max(sequence_number) + 1, 0) FROM scope WHERE trajectory_id = ?1;

-- trajectory.of_owner
--   takes: initiator_type, initiator_id
--   gives: ordinal, trajectory_id
SELECT ordinal, trajectory_id FROM trajectory WHERE initiator_type = ?1 AND initiator_id = ?2 UNION SELECT ordinal, trajectory_id FROM trajectory WHERE initiator_type = 'system';

-- trajectory.of_session
--   takes: session_id
--   gives: ordinal, trajectory_id
SELECT ordinal, trajectory_id FROM trajectory WHERE session_id = ?1 UNION SELECT ordinal, trajectory_id FROM trajectory WHERE initiator_type = 'system';

-- trigger.prune
--   takes: older_than
DELETE FROM pending_trigger WHERE created_at < ?1;

-- trigger.take
--   takes: trigger_id, version, trajectory_id
--   gives: erasures
DELETE FROM pending_trigger WHERE trigger_id = ?1 AND version = ?2 AND trajectory_id = ?3 RETURNING (SELECT count(*) FROM erasure);

-- turn.block
--   takes: trajectory_id, scope_id, first_turn, last_turn
--   gives: ordinal, turn_id, trajectory_id, scope_id, sequence, turn_number, role, trust, content, token_count, created_at, occurred_at, name, tool_calls, tool_call_id, model_id, idempotency_key, version
SELECT "ordinal", "turn_id", "trajectory_id", "scope_id", "sequence", "turn_number", "role", "trust", "content", "token_count", "created_at", "occurred_at", "name", "tool_calls", "tool_call_id", "model_id", "idempotency_key", "version" FROM turn WHERE trajectory_id = ?1 AND scope_id = ?2 AND turn_number BETWEEN ?3 AND ?4 ORDER BY turn_number;

-- turn.hold_block
--   takes: trajectory_id, scope_id, first_turn, last_turn
--   gives: ordinal, turn_id, trajectory_id, scope_id, sequence, turn_number, role, trust, content, token_count, created_at, occurred_at, name, tool_calls, tool_call_id, model_id, idempotency_key, version
SELECT "ordinal", "turn_id", "trajectory_id", "scope_id", "sequence", "turn_number", "role", "trust", "content", "token_count", "created_at", "occurred_at", "name", "tool_calls", "tool_call_id", "model_id", "idempotency_key", "version" FROM turn WHERE trajectory_id = ?1 AND scope_id = ?2 AND turn_number BETWEEN ?3 AND ?4 ORDER BY turn_number;

-- turn.last_said
--   takes: trajectory_id
--   gives: ordinal, turn_id, trajectory_id, scope_id, sequence, turn_number, role, trust, content, token_count, created_at, occurred_at, name, tool_calls, tool_call_id, model_id, idempotency_key, version
SELECT "ordinal", "turn_id", "trajectory_id", "scope_id", "sequence", "turn_number", "role", "trust", "content", "token_count", "created_at", "occurred_at", "name", "tool_calls", "tool_call_id", "model_id", "idempotency_key", "version" FROM turn WHERE ordinal = (SELECT t.ordinal FROM scope AS s CROSS JOIN turn AS t ON t.scope_id = s.scope_id WHERE s.trajectory_id = ?1 AND t.role = 'user' ORDER BY s.sequence_number DESC, t.turn_number DESC LIMIT 1);

-- turn.newest
--   takes: scope_id, limit
--   gives: ordinal, turn_id, trajectory_id, scope_id, sequence, turn_number, role, trust, content, token_count, created_at, occurred_at, name, tool_calls, tool_call_id, model_id, idempotency_key, version
SELECT "ordinal", "turn_id", "trajectory_id", "scope_id", "sequence", "turn_number", "role", "trust", "content", "token_count", "created_at", "occurred_at", "name", "tool_calls", "tool_call_id", "model_id", "idempotency_key", "version" FROM turn WHERE scope_id = ?1 ORDER BY turn_number DESC LIMIT ?2;

-- turn.of_closed_scopes
--   takes: created_until
--   gives: ordinal, turn_id, trajectory_id, scope_id, sequence, turn_number, role, trust, content, token_count, created_at, occurred_at, name, tool_calls, tool_call_id, model_id, idempotency_key, version
SELECT "ordinal", "turn_id", "trajectory_id", "scope_id", "sequence", "turn_number", "role", "trust", "content", "token_count", "created_at", "occurred_at", "name", "tool_calls", "tool_call_id", "model_id", "idempotency_key", "version" FROM turn WHERE created_at <= ?1 AND scope_id IN (SELECT scope_id FROM scope WHERE closed_at IS NOT NULL) ORDER BY ordinal;

-- turn.outline
--   takes: scope_id, turn_number
--   gives: turn_number, is_result, calls
SELECT turn_number, role = 'tool', tool_calls <> '[]' FROM turn WHERE scope_id = ?1 AND turn_number >= ?2 ORDER BY turn_number;

-- turn_summary.hold_scope
--   takes: trajectory_id, scope_id
--   gives: scope_id
SELECT scope_id FROM scope WHERE trajectory_id = ?1 AND scope_id = ?2 AND closed_at IS NULL;

-- turn_summary.overlapping
--   takes: scope_id, first_turn, last_turn
--   gives: ordinal, turn_summary_id, trajectory_id, scope_id, first_turn, last_turn, content, token_count, trust, source_turns, model_id, created_at, version
SELECT "ordinal", "turn_summary_id", "trajectory_id", "scope_id", "first_turn", "last_turn", "content", "token_count", "trust", "source_turns", "model_id", "created_at", "version" FROM turn_summary WHERE scope_id = ?1 AND first_turn <= ?3 AND last_turn >= ?2 ORDER BY first_turn;

-- turn_summary.ranges
--   takes: scope_id
--   gives: first_turn, last_turn, source_turns
SELECT first_turn, last_turn, length(source_turns) / 16 FROM turn_summary WHERE scope_id = ?1 ORDER BY first_turn;

-- usage.bump
--   takes: owner_type, owner_id, count, now
--   gives: ordinal, owner_type, owner_id, access_count, last_accessed_at, version
INSERT INTO usage (owner_type, owner_id, access_count, last_accessed_at, version) VALUES (?1, ?2, ?3, ?4, 1) ON CONFLICT (owner_id) DO UPDATE SET access_count = access_count + excluded.access_count, last_accessed_at = max(last_accessed_at, excluded.last_accessed_at), version = version + 1 RETURNING "ordinal", "owner_type", "owner_id", "access_count", "last_accessed_at", "version";

-- window.prune
--   takes: now, older_than
DELETE FROM context_window WHERE expires_at <= ?1 OR assembled_at < ?2;
