-- Six relations and the irregular statements of sqlite, as compiled; see test_plans.py.

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
  "thinking" TEXT CHECK (json_valid("thinking")),
  "is_error" INTEGER CHECK ("is_error" IN (0, 1)),
  "model_id" TEXT,
  "idempotency_key" TEXT,
  "rolled_back_at" INTEGER,
  "raw_form" BLOB,
  "author_id" BLOB CHECK (length("author_id") = 16),
  "utc_offset_s" INTEGER CHECK ("utc_offset_s" >= -86400) CHECK ("utc_offset_s" <= 86400),
  "version" INTEGER NOT NULL CHECK ("version" >= 1),
  UNIQUE ("turn_id"),
  FOREIGN KEY ("scope_id") REFERENCES "scope" ("scope_id") ON DELETE CASCADE,
  FOREIGN KEY ("trajectory_id") REFERENCES "trajectory" ("trajectory_id") ON DELETE CASCADE
) STRICT;

CREATE UNIQUE INDEX "uq_turn_scope_id_sequence" ON "turn" ("scope_id", "sequence");

CREATE UNIQUE INDEX "uq_turn_trajectory_id_turn_number" ON "turn" ("trajectory_id", "turn_number");

CREATE UNIQUE INDEX "uq_turn_trajectory_id_idempotency_key" ON "turn" ("trajectory_id", "idempotency_key") WHERE "idempotency_key" IS NOT NULL;

-- turn.insert
--   takes: ordinal, turn_id, trajectory_id, scope_id, sequence, turn_number, role, trust, content, token_count, created_at, occurred_at, name, tool_calls, tool_call_id, thinking, is_error, model_id, idempotency_key, rolled_back_at, raw_form, author_id, utc_offset_s, version
--   gives: ordinal
INSERT INTO "turn" ("ordinal", "turn_id", "trajectory_id", "scope_id", "sequence", "turn_number", "role", "trust", "content", "token_count", "created_at", "occurred_at", "name", "tool_calls", "tool_call_id", "thinking", "is_error", "model_id", "idempotency_key", "rolled_back_at", "raw_form", "author_id", "utc_offset_s", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24) RETURNING "ordinal";

-- turn.insert_or_ignore
--   takes: ordinal, turn_id, trajectory_id, scope_id, sequence, turn_number, role, trust, content, token_count, created_at, occurred_at, name, tool_calls, tool_call_id, thinking, is_error, model_id, idempotency_key, rolled_back_at, raw_form, author_id, utc_offset_s, version
--   gives: ordinal
INSERT INTO "turn" ("ordinal", "turn_id", "trajectory_id", "scope_id", "sequence", "turn_number", "role", "trust", "content", "token_count", "created_at", "occurred_at", "name", "tool_calls", "tool_call_id", "thinking", "is_error", "model_id", "idempotency_key", "rolled_back_at", "raw_form", "author_id", "utc_offset_s", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24) ON CONFLICT DO NOTHING RETURNING "ordinal";

-- turn.upsert
--   takes: ordinal, turn_id, trajectory_id, scope_id, sequence, turn_number, role, trust, content, token_count, created_at, occurred_at, name, tool_calls, tool_call_id, thinking, is_error, model_id, idempotency_key, rolled_back_at, raw_form, author_id, utc_offset_s, version
--   gives: ordinal
INSERT INTO "turn" ("ordinal", "turn_id", "trajectory_id", "scope_id", "sequence", "turn_number", "role", "trust", "content", "token_count", "created_at", "occurred_at", "name", "tool_calls", "tool_call_id", "thinking", "is_error", "model_id", "idempotency_key", "rolled_back_at", "raw_form", "author_id", "utc_offset_s", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24) ON CONFLICT ("turn_id") DO UPDATE SET "trajectory_id" = excluded."trajectory_id", "scope_id" = excluded."scope_id", "sequence" = excluded."sequence", "turn_number" = excluded."turn_number", "role" = excluded."role", "trust" = excluded."trust", "content" = excluded."content", "token_count" = excluded."token_count", "created_at" = excluded."created_at", "occurred_at" = excluded."occurred_at", "name" = excluded."name", "tool_calls" = excluded."tool_calls", "tool_call_id" = excluded."tool_call_id", "thinking" = excluded."thinking", "is_error" = excluded."is_error", "model_id" = excluded."model_id", "idempotency_key" = excluded."idempotency_key", "rolled_back_at" = excluded."rolled_back_at", "raw_form" = excluded."raw_form", "author_id" = excluded."author_id", "utc_offset_s" = excluded."utc_offset_s", "version" = excluded."version" RETURNING "ordinal";

-- turn.get
--   takes: turn_id
--   gives: ordinal, turn_id, trajectory_id, scope_id, sequence, turn_number, role, trust, content, token_count, created_at, occurred_at, name, tool_calls, tool_call_id, thinking, is_error, model_id, idempotency_key, rolled_back_at, raw_form, author_id, utc_offset_s, version
SELECT "ordinal", "turn_id", "trajectory_id", "scope_id", "sequence", "turn_number", "role", "trust", "content", "token_count", "created_at", "occurred_at", "name", "tool_calls", "tool_call_id", "thinking", "is_error", "model_id", "idempotency_key", "rolled_back_at", "raw_form", "author_id", "utc_offset_s", "version" FROM "turn" WHERE "turn_id" = ?1;

-- turn.update
--   takes: trajectory_id, scope_id, sequence, turn_number, role, trust, content, token_count, created_at, occurred_at, name, tool_calls, tool_call_id, thinking, is_error, model_id, idempotency_key, rolled_back_at, raw_form, author_id, utc_offset_s, version, turn_id, version
UPDATE "turn" SET "trajectory_id" = ?1, "scope_id" = ?2, "sequence" = ?3, "turn_number" = ?4, "role" = ?5, "trust" = ?6, "content" = ?7, "token_count" = ?8, "created_at" = ?9, "occurred_at" = ?10, "name" = ?11, "tool_calls" = ?12, "tool_call_id" = ?13, "thinking" = ?14, "is_error" = ?15, "model_id" = ?16, "idempotency_key" = ?17, "rolled_back_at" = ?18, "raw_form" = ?19, "author_id" = ?20, "utc_offset_s" = ?21, "version" = ?22 WHERE "turn_id" = ?23 AND "version" = ?24;

-- turn.delete
--   takes: turn_id
DELETE FROM "turn" WHERE "turn_id" = ?1;

-- turn.count
--   takes: nothing
--   gives: count
SELECT count(*) FROM "turn";

-- turn.page
--   takes: ordinal, limit
--   gives: ordinal, turn_id, trajectory_id, scope_id, sequence, turn_number, role, trust, content, token_count, created_at, occurred_at, name, tool_calls, tool_call_id, thinking, is_error, model_id, idempotency_key, rolled_back_at, raw_form, author_id, utc_offset_s, version
SELECT "ordinal", "turn_id", "trajectory_id", "scope_id", "sequence", "turn_number", "role", "trust", "content", "token_count", "created_at", "occurred_at", "name", "tool_calls", "tool_call_id", "thinking", "is_error", "model_id", "idempotency_key", "rolled_back_at", "raw_form", "author_id", "utc_offset_s", "version" FROM "turn" WHERE "ordinal" > ?1 ORDER BY "ordinal" LIMIT ?2;

-- turn.get_many
--   takes: ordinals
--   gives: ordinal, turn_id, trajectory_id, scope_id, sequence, turn_number, role, trust, content, token_count, created_at, occurred_at, name, tool_calls, tool_call_id, thinking, is_error, model_id, idempotency_key, rolled_back_at, raw_form, author_id, utc_offset_s, version
SELECT "ordinal", "turn_id", "trajectory_id", "scope_id", "sequence", "turn_number", "role", "trust", "content", "token_count", "created_at", "occurred_at", "name", "tool_calls", "tool_call_id", "thinking", "is_error", "model_id", "idempotency_key", "rolled_back_at", "raw_form", "author_id", "utc_offset_s", "version" FROM "turn" WHERE "ordinal" IN (SELECT value FROM json_each(?1));

-- turn.find_many
--   takes: ids
--   gives: ordinal, turn_id, trajectory_id, scope_id, sequence, turn_number, role, trust, content, token_count, created_at, occurred_at, name, tool_calls, tool_call_id, thinking, is_error, model_id, idempotency_key, rolled_back_at, raw_form, author_id, utc_offset_s, version
SELECT "ordinal", "turn_id", "trajectory_id", "scope_id", "sequence", "turn_number", "role", "trust", "content", "token_count", "created_at", "occurred_at", "name", "tool_calls", "tool_call_id", "thinking", "is_error", "model_id", "idempotency_key", "rolled_back_at", "raw_form", "author_id", "utc_offset_s", "version" FROM "turn" WHERE "turn_id" IN (SELECT unhex(value) FROM json_each(?1));

-- turn.delete_many
--   takes: ids
--   gives: turn_id, version
DELETE FROM "turn" WHERE "turn_id" IN (SELECT unhex(value) FROM json_each(?1)) RETURNING "turn_id", "version";

-- turn.list_by_scope
--   takes: scope_id
--   gives: ordinal, turn_id, trajectory_id, scope_id, sequence, turn_number, role, trust, content, token_count, created_at, occurred_at, name, tool_calls, tool_call_id, thinking, is_error, model_id, idempotency_key, rolled_back_at, raw_form, author_id, utc_offset_s, version
SELECT "ordinal", "turn_id", "trajectory_id", "scope_id", "sequence", "turn_number", "role", "trust", "content", "token_count", "created_at", "occurred_at", "name", "tool_calls", "tool_call_id", "thinking", "is_error", "model_id", "idempotency_key", "rolled_back_at", "raw_form", "author_id", "utc_offset_s", "version" FROM "turn" WHERE "scope_id" = ?1 ORDER BY "sequence";

-- turn.referring_scope_id
--   takes: scope_id
--   gives: ordinal, turn_id, trajectory_id, scope_id, sequence, turn_number, role, trust, content, token_count, created_at, occurred_at, name, tool_calls, tool_call_id, thinking, is_error, model_id, idempotency_key, rolled_back_at, raw_form, author_id, utc_offset_s, version
SELECT "ordinal", "turn_id", "trajectory_id", "scope_id", "sequence", "turn_number", "role", "trust", "content", "token_count", "created_at", "occurred_at", "name", "tool_calls", "tool_call_id", "thinking", "is_error", "model_id", "idempotency_key", "rolled_back_at", "raw_form", "author_id", "utc_offset_s", "version" FROM "turn" WHERE "scope_id" = ?1 ORDER BY "ordinal";

-- turn.referring_trajectory_id
--   takes: trajectory_id
--   gives: ordinal, turn_id, trajectory_id, scope_id, sequence, turn_number, role, trust, content, token_count, created_at, occurred_at, name, tool_calls, tool_call_id, thinking, is_error, model_id, idempotency_key, rolled_back_at, raw_form, author_id, utc_offset_s, version
SELECT "ordinal", "turn_id", "trajectory_id", "scope_id", "sequence", "turn_number", "role", "trust", "content", "token_count", "created_at", "occurred_at", "name", "tool_calls", "tool_call_id", "thinking", "is_error", "model_id", "idempotency_key", "rolled_back_at", "raw_form", "author_id", "utc_offset_s", "version" FROM "turn" WHERE "trajectory_id" = ?1 ORDER BY "ordinal";

-- turn.by_scope_id_sequence
--   takes: scope_id, sequence
--   gives: ordinal, turn_id, trajectory_id, scope_id, sequence, turn_number, role, trust, content, token_count, created_at, occurred_at, name, tool_calls, tool_call_id, thinking, is_error, model_id, idempotency_key, rolled_back_at, raw_form, author_id, utc_offset_s, version
SELECT "ordinal", "turn_id", "trajectory_id", "scope_id", "sequence", "turn_number", "role", "trust", "content", "token_count", "created_at", "occurred_at", "name", "tool_calls", "tool_call_id", "thinking", "is_error", "model_id", "idempotency_key", "rolled_back_at", "raw_form", "author_id", "utc_offset_s", "version" FROM "turn" WHERE "scope_id" = ?1 AND "sequence" = ?2;

-- turn.by_trajectory_id_turn_number
--   takes: trajectory_id, turn_number
--   gives: ordinal, turn_id, trajectory_id, scope_id, sequence, turn_number, role, trust, content, token_count, created_at, occurred_at, name, tool_calls, tool_call_id, thinking, is_error, model_id, idempotency_key, rolled_back_at, raw_form, author_id, utc_offset_s, version
SELECT "ordinal", "turn_id", "trajectory_id", "scope_id", "sequence", "turn_number", "role", "trust", "content", "token_count", "created_at", "occurred_at", "name", "tool_calls", "tool_call_id", "thinking", "is_error", "model_id", "idempotency_key", "rolled_back_at", "raw_form", "author_id", "utc_offset_s", "version" FROM "turn" WHERE "trajectory_id" = ?1 AND "turn_number" = ?2;

-- turn.by_trajectory_id_idempotency_key
--   takes: trajectory_id, idempotency_key
--   gives: ordinal, turn_id, trajectory_id, scope_id, sequence, turn_number, role, trust, content, token_count, created_at, occurred_at, name, tool_calls, tool_call_id, thinking, is_error, model_id, idempotency_key, rolled_back_at, raw_form, author_id, utc_offset_s, version
SELECT "ordinal", "turn_id", "trajectory_id", "scope_id", "sequence", "turn_number", "role", "trust", "content", "token_count", "created_at", "occurred_at", "name", "tool_calls", "tool_call_id", "thinking", "is_error", "model_id", "idempotency_key", "rolled_back_at", "raw_form", "author_id", "utc_offset_s", "version" FROM "turn" WHERE "trajectory_id" = ?1 AND "idempotency_key" = ?2 AND "idempotency_key" IS NOT NULL;

-- turn.expired
--   takes: created_until, limit
--   gives: turn_id
SELECT "turn_id" FROM "turn" WHERE "created_at" <= ?1 AND TRUE ORDER BY "ordinal" LIMIT ?2;

-- turn.stale
--   takes: created_until, confidence_below
--   gives: ordinal, turn_id, trajectory_id, scope_id, sequence, turn_number, role, trust, content, token_count, created_at, occurred_at, name, tool_calls, tool_call_id, thinking, is_error, model_id, idempotency_key, rolled_back_at, raw_form, author_id, utc_offset_s, version
SELECT "ordinal", "turn_id", "trajectory_id", "scope_id", "sequence", "turn_number", "role", "trust", "content", "token_count", "created_at", "occurred_at", "name", "tool_calls", "tool_call_id", "thinking", "is_error", "model_id", "idempotency_key", "rolled_back_at", "raw_form", "author_id", "utc_offset_s", "version" FROM "turn" WHERE "created_at" <= ?1 AND 1 < CAST(?2 AS DOUBLE PRECISION) AND TRUE ORDER BY "ordinal";

-- turn.surplus
--   takes: keep, limit
--   gives: turn_id
SELECT "turn_id" FROM (SELECT "turn_id", "ordinal", row_number() OVER (ORDER BY "created_at" DESC, "ordinal" DESC) AS place FROM "turn" WHERE TRUE) AS ranked WHERE place > ?1 ORDER BY "ordinal" LIMIT ?2;

-- turn.surplus_by_trajectory
--   takes: keep, limit
--   gives: turn_id
SELECT "turn_id" FROM (SELECT "turn_id", "ordinal", row_number() OVER (PARTITION BY "trajectory_id" ORDER BY "created_at" DESC, "ordinal" DESC) AS place FROM "turn" WHERE TRUE) AS ranked WHERE place > ?1 ORDER BY "ordinal" LIMIT ?2;

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
  "author_id" BLOB CHECK (length("author_id") = 16),
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
--   takes: ordinal, artifact_id, trajectory_id, scope_id, artifact_type, schema_version, content, content_hash, extraction_method, trust, ttl_kind, ttl_ms, token_count, created_at, updated_at, confidence, source_turn, session_id, expires_at, superseded_by, rolled_back_at, retired_at, occurred_at, idempotency_key, author_id, version
--   gives: ordinal
INSERT INTO "artifact" ("ordinal", "artifact_id", "trajectory_id", "scope_id", "artifact_type", "schema_version", "content", "content_hash", "extraction_method", "trust", "ttl_kind", "ttl_ms", "token_count", "created_at", "updated_at", "confidence", "source_turn", "session_id", "expires_at", "superseded_by", "rolled_back_at", "retired_at", "occurred_at", "idempotency_key", "author_id", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26) RETURNING "ordinal";

-- artifact.insert_or_ignore
--   takes: ordinal, artifact_id, trajectory_id, scope_id, artifact_type, schema_version, content, content_hash, extraction_method, trust, ttl_kind, ttl_ms, token_count, created_at, updated_at, confidence, source_turn, session_id, expires_at, superseded_by, rolled_back_at, retired_at, occurred_at, idempotency_key, author_id, version
--   gives: ordinal
INSERT INTO "artifact" ("ordinal", "artifact_id", "trajectory_id", "scope_id", "artifact_type", "schema_version", "content", "content_hash", "extraction_method", "trust", "ttl_kind", "ttl_ms", "token_count", "created_at", "updated_at", "confidence", "source_turn", "session_id", "expires_at", "superseded_by", "rolled_back_at", "retired_at", "occurred_at", "idempotency_key", "author_id", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26) ON CONFLICT DO NOTHING RETURNING "ordinal";

-- artifact.upsert
--   takes: ordinal, artifact_id, trajectory_id, scope_id, artifact_type, schema_version, content, content_hash, extraction_method, trust, ttl_kind, ttl_ms, token_count, created_at, updated_at, confidence, source_turn, session_id, expires_at, superseded_by, rolled_back_at, retired_at, occurred_at, idempotency_key, author_id, version
--   gives: ordinal
INSERT INTO "artifact" ("ordinal", "artifact_id", "trajectory_id", "scope_id", "artifact_type", "schema_version", "content", "content_hash", "extraction_method", "trust", "ttl_kind", "ttl_ms", "token_count", "created_at", "updated_at", "confidence", "source_turn", "session_id", "expires_at", "superseded_by", "rolled_back_at", "retired_at", "occurred_at", "idempotency_key", "author_id", "version") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26) ON CONFLICT ("artifact_id") DO UPDATE SET "trajectory_id" = excluded."trajectory_id", "scope_id" = excluded."scope_id", "artifact_type" = excluded."artifact_type", "schema_version" = excluded."schema_version", "content" = excluded."content", "content_hash" = excluded."content_hash", "extraction_method" = excluded."extraction_method", "trust" = excluded."trust", "ttl_kind" = excluded."ttl_kind", "ttl_ms" = excluded."ttl_ms", "token_count" = excluded."token_count", "created_at" = excluded."created_at", "updated_at" = excluded."updated_at", "confidence" = excluded."confidence", "source_turn" = excluded."source_turn", "session_id" = excluded."session_id", "expires_at" = excluded."expires_at", "superseded_by" = excluded."superseded_by", "rolled_back_at" = excluded."rolled_back_at", "retired_at" = excluded."retired_at", "occurred_at" = excluded."occurred_at", "idempotency_key" = excluded."idempotency_key", "author_id" = excluded."author_id", "version" = excluded."version" RETURNING "ordinal";

-- artifact.get
--   takes: artifact_id
--   gives: ordinal, artifact_id, trajectory_id, scope_id, artifact_type, schema_version, content, content_hash, extraction_method, trust, ttl_kind, ttl_ms, token_count, created_at, updated_at, confidence, source_turn, session_id, expires_at, superseded_by, rolled_back_at, retired_at, occurred_at, idempotency_key, author_id, version
SELECT "ordinal", "artifact_id", "trajectory_id", "scope_id", "artifact_type", "schema_version", "content", "content_hash", "extraction_method", "trust", "ttl_kind", "ttl_ms", "token_count", "created_at", "updated_at", "confidence", "source_turn", "session_id", "expires_at", "superseded_by", "rolled_back_at", "retired_at", "occurred_at", "idempotency_key", "author_id", "version" FROM "artifact" WHERE "artifact_id" = ?1;

-- artifact.update
--   takes: trajectory_id, scope_id, artifact_type, schema_version, content, content_hash, extraction_method, trust, ttl_kind, ttl_ms, token_count, created_at, updated_at, confidence, source_turn, session_id, expires_at, superseded_by, rolled_back_at, retired_at, occurred_at, idempotency_key, author_id, version, artifact_id, version
UPDATE "artifact" SET "trajectory_id" = ?1, "scope_id" = ?2, "artifact_type" = ?3, "schema_version" = ?4, "content" = ?5, "content_hash" = ?6, "extraction_method" = ?7, "trust" = ?8, "ttl_kind" = ?9, "ttl_ms" = ?10, "token_count" = ?11, "created_at" = ?12, "updated_at" = ?13, "confidence" = ?14, "source_turn" = ?15, "session_id" = ?16, "expires_at" = ?17, "superseded_by" = ?18, "rolled_back_at" = ?19, "retired_at" = ?20, "occurred_at" = ?21, "idempotency_key" = ?22, "author_id" = ?23, "version" = ?24 WHERE "artifact_id" = ?25 AND "version" = ?26;

-- artifact.delete
--   takes: artifact_id
DELETE FROM "artifact" WHERE "artifact_id" = ?1;

-- artifact.count
--   takes: nothing
--   gives: count
SELECT count(*) FROM "artifact";

-- artifact.page
--   takes: ordinal, limit
--   gives: ordinal, artifact_id, trajectory_id, scope_id, artifact_type, schema_version, content, content_hash, extraction_method, trust, ttl_kind, ttl_ms, token_count, created_at, updated_at, confidence, source_turn, session_id, expires_at, superseded_by, rolled_back_at, retired_at, occurred_at, idempotency_key, author_id, version
SELECT "ordinal", "artifact_id", "trajectory_id", "scope_id", "artifact_type", "schema_version", "content", "content_hash", "extraction_method", "trust", "ttl_kind", "ttl_ms", "token_count", "created_at", "updated_at", "confidence", "source_turn", "session_id", "expires_at", "superseded_by", "rolled_back_at", "retired_at", "occurred_at", "idempotency_key", "author_id", "version" FROM "artifact" WHERE "ordinal" > ?1 ORDER BY "ordinal" LIMIT ?2;

-- artifact.get_many
--   takes: ordinals
--   gives: ordinal, artifact_id, trajectory_id, scope_id, artifact_type, schema_version, content, content_hash, extraction_method, trust, ttl_kind, ttl_ms, token_count, created_at, updated_at, confidence, source_turn, session_id, expires_at, superseded_by, rolled_back_at, retired_at, occurred_at, idempotency_key, author_id, version
SELECT "ordinal", "artifact_id", "trajectory_id", "scope_id", "artifact_type", "schema_version", "content", "content_hash", "extraction_method", "trust", "ttl_kind", "ttl_ms", "token_count", "created_at", "updated_at", "confidence", "source_turn", "session_id", "expires_at", "superseded_by", "rolled_back_at", "retired_at", "occurred_at", "idempotency_key", "author_id", "version" FROM "artifact" WHERE "ordinal" IN (SELECT value FROM json_each(?1));

-- artifact.find_many
--   takes: ids
--   gives: ordinal, artifact_id, trajectory_id, scope_id, artifact_type, schema_version, content, content_hash, extraction_method, trust, ttl_kind, ttl_ms, token_count, created_at, updated_at, confidence, source_turn, session_id, expires_at, superseded_by, rolled_back_at, retired_at, occurred_at, idempotency_key, author_id, version
SELECT "ordinal", "artifact_id", "trajectory_id", "scope_id", "artifact_type", "schema_version", "content", "content_hash", "extraction_method", "trust", "ttl_kind", "ttl_ms", "token_count", "created_at", "updated_at", "confidence", "source_turn", "session_id", "expires_at", "superseded_by", "rolled_back_at", "retired_at", "occurred_at", "idempotency_key", "author_id", "version" FROM "artifact" WHERE "artifact_id" IN (SELECT unhex(value) FROM json_each(?1));

-- artifact.delete_many
--   takes: ids
--   gives: artifact_id, version
DELETE FROM "artifact" WHERE "artifact_id" IN (SELECT unhex(value) FROM json_each(?1)) RETURNING "artifact_id", "version";

-- artifact.list_by_trajectory
--   takes: trajectory_id
--   gives: ordinal, artifact_id, trajectory_id, scope_id, artifact_type, schema_version, content, content_hash, extraction_method, trust, ttl_kind, ttl_ms, token_count, created_at, updated_at, confidence, source_turn, session_id, expires_at, superseded_by, rolled_back_at, retired_at, occurred_at, idempotency_key, author_id, version
SELECT "ordinal", "artifact_id", "trajectory_id", "scope_id", "artifact_type", "schema_version", "content", "content_hash", "extraction_method", "trust", "ttl_kind", "ttl_ms", "token_count", "created_at", "updated_at", "confidence", "source_turn", "session_id", "expires_at", "superseded_by", "rolled_back_at", "retired_at", "occurred_at", "idempotency_key", "author_id", "version" FROM "artifact" WHERE "trajectory_id" = ?1 ORDER BY "created_at", "ordinal";

-- artifact.list_by_scope
--   takes: scope_id
--   gives: ordinal, artifact_id, trajectory_id, scope_id, artifact_type, schema_version, content, content_hash, extraction_method, trust, ttl_kind, ttl_ms, token_count, created_at, updated_at, confidence, source_turn, session_id, expires_at, superseded_by, rolled_back_at, retired_at, occurred_at, idempotency_key, author_id, version
SELECT "ordinal", "artifact_id", "trajectory_id", "scope_id", "artifact_type", "schema_version", "content", "content_hash", "extraction_method", "trust", "ttl_kind", "ttl_ms", "token_count", "created_at", "updated_at", "confidence", "source_turn", "session_id", "expires_at", "superseded_by", "rolled_back_at", "retired_at", "occurred_at", "idempotency_key", "author_id", "version" FROM "artifact" WHERE "scope_id" = ?1 ORDER BY "created_at", "ordinal";

-- artifact.list_by_type
--   takes: trajectory_id, artifact_type
--   gives: ordinal, artifact_id, trajectory_id, scope_id, artifact_type, schema_version, content, content_hash, extraction_method, trust, ttl_kind, ttl_ms, token_count, created_at, updated_at, confidence, source_turn, session_id, expires_at, superseded_by, rolled_back_at, retired_at, occurred_at, idempotency_key, author_id, version
SELECT "ordinal", "artifact_id", "trajectory_id", "scope_id", "artifact_type", "schema_version", "content", "content_hash", "extraction_method", "trust", "ttl_kind", "ttl_ms", "token_count", "created_at", "updated_at", "confidence", "source_turn", "session_id", "expires_at", "superseded_by", "rolled_back_at", "retired_at", "occurred_at", "idempotency_key", "author_id", "version" FROM "artifact" WHERE "trajectory_id" = ?1 AND "artifact_type" = ?2 ORDER BY "created_at", "ordinal";

-- artifact.list_by_hash
--   takes: trajectory_id, content_hash
--   gives: ordinal, artifact_id, trajectory_id, scope_id, artifact_type, schema_version, content, content_hash, extraction_method, trust, ttl_kind, ttl_ms, token_count, created_at, updated_at, confidence, source_turn, session_id, expires_at, superseded_by, rolled_back_at, retired_at, occurred_at, idempotency_key, author_id, version
SELECT "ordinal", "artifact_id", "trajectory_id", "scope_id", "artifact_type", "schema_version", "content", "content_hash", "extraction_method", "trust", "ttl_kind", "ttl_ms", "token_count", "created_at", "updated_at", "confidence", "source_turn", "session_id", "expires_at", "superseded_by", "rolled_back_at", "retired_at", "occurred_at", "idempotency_key", "author_id", "version" FROM "artifact" WHERE "trajectory_id" = ?1 AND "content_hash" = ?2 ORDER BY "created_at", "ordinal";

-- artifact.list_by_session
--   takes: session_id
--   gives: ordinal, artifact_id, trajectory_id, scope_id, artifact_type, schema_version, content, content_hash, extraction_method, trust, ttl_kind, ttl_ms, token_count, created_at, updated_at, confidence, source_turn, session_id, expires_at, superseded_by, rolled_back_at, retired_at, occurred_at, idempotency_key, author_id, version
SELECT "ordinal", "artifact_id", "trajectory_id", "scope_id", "artifact_type", "schema_version", "content", "content_hash", "extraction_method", "trust", "ttl_kind", "ttl_ms", "token_count", "created_at", "updated_at", "confidence", "source_turn", "session_id", "expires_at", "superseded_by", "rolled_back_at", "retired_at", "occurred_at", "idempotency_key", "author_id", "version" FROM "artifact" WHERE "session_id" = ?1 AND "session_id" IS NOT NULL ORDER BY "created_at", "ordinal";

-- artifact.list_superseded_by
--   takes: superseded_by
--   gives: ordinal, artifact_id, trajectory_id, scope_id, artifact_type, schema_version, content, content_hash, extraction_method, trust, ttl_kind, ttl_ms, token_count, created_at, updated_at, confidence, source_turn, session_id, expires_at, superseded_by, rolled_back_at, retired_at, occurred_at, idempotency_key, author_id, version
SELECT "ordinal", "artifact_id", "trajectory_id", "scope_id", "artifact_type", "schema_version", "content", "content_hash", "extraction_method", "trust", "ttl_kind", "ttl_ms", "token_count", "created_at", "updated_at", "confidence", "source_turn", "session_id", "expires_at", "superseded_by", "rolled_back_at", "retired_at", "occurred_at", "idempotency_key", "author_id", "version" FROM "artifact" WHERE "superseded_by" = ?1 AND "superseded_by" IS NOT NULL ORDER BY "created_at", "ordinal";

-- artifact.referring_scope_id
--   takes: scope_id
--   gives: ordinal, artifact_id, trajectory_id, scope_id, artifact_type, schema_version, content, content_hash, extraction_method, trust, ttl_kind, ttl_ms, token_count, created_at, updated_at, confidence, source_turn, session_id, expires_at, superseded_by, rolled_back_at, retired_at, occurred_at, idempotency_key, author_id, version
SELECT "ordinal", "artifact_id", "trajectory_id", "scope_id", "artifact_type", "schema_version", "content", "content_hash", "extraction_method", "trust", "ttl_kind", "ttl_ms", "token_count", "created_at", "updated_at", "confidence", "source_turn", "session_id", "expires_at", "superseded_by", "rolled_back_at", "retired_at", "occurred_at", "idempotency_key", "author_id", "version" FROM "artifact" WHERE "scope_id" = ?1 ORDER BY "ordinal";

-- artifact.referring_trajectory_id
--   takes: trajectory_id
--   gives: ordinal, artifact_id, trajectory_id, scope_id, artifact_type, schema_version, content, content_hash, extraction_method, trust, ttl_kind, ttl_ms, token_count, created_at, updated_at, confidence, source_turn, session_id, expires_at, superseded_by, rolled_back_at, retired_at, occurred_at, idempotency_key, author_id, version
SELECT "ordinal", "artifact_id", "trajectory_id", "scope_id", "artifact_type", "schema_version", "content", "content_hash", "extraction_method", "trust", "ttl_kind", "ttl_ms", "token_count", "created_at", "updated_at", "confidence", "source_turn", "session_id", "expires_at", "superseded_by", "rolled_back_at", "retired_at", "occurred_at", "idempotency_key", "author_id", "version" FROM "artifact" WHERE "trajectory_id" = ?1 ORDER BY "ordinal";

-- artifact.referring_session_id
--   takes: session_id
--   gives: ordinal, artifact_id, trajectory_id, scope_id, artifact_type, schema_version, content, content_hash, extraction_method, trust, ttl_kind, ttl_ms, token_count, created_at, updated_at, confidence, source_turn, session_id, expires_at, superseded_by, rolled_back_at, retired_at, occurred_at, idempotency_key, author_id, version
SELECT "ordinal", "artifact_id", "trajectory_id", "scope_id", "artifact_type", "schema_version", "content", "content_hash", "extraction_method", "trust", "ttl_kind", "ttl_ms", "token_count", "created_at", "updated_at", "confidence", "source_turn", "session_id", "expires_at", "superseded_by", "rolled_back_at", "retired_at", "occurred_at", "idempotency_key", "author_id", "version" FROM "artifact" WHERE "session_id" = ?1 ORDER BY "ordinal";

-- artifact.referring_superseded_by
--   takes: superseded_by
--   gives: ordinal, artifact_id, trajectory_id, scope_id, artifact_type, schema_version, content, content_hash, extraction_method, trust, ttl_kind, ttl_ms, token_count, created_at, updated_at, confidence, source_turn, session_id, expires_at, superseded_by, rolled_back_at, retired_at, occurred_at, idempotency_key, author_id, version
SELECT "ordinal", "artifact_id", "trajectory_id", "scope_id", "artifact_type", "schema_version", "content", "content_hash", "extraction_method", "trust", "ttl_kind", "ttl_ms", "token_count", "created_at", "updated_at", "confidence", "source_turn", "session_id", "expires_at", "superseded_by", "rolled_back_at", "retired_at", "occurred_at", "idempotency_key", "author_id", "version" FROM "artifact" WHERE "superseded_by" = ?1 ORDER BY "ordinal";

-- artifact.by_trajectory_id_content_hash_artifact_type_trust
--   takes: trajectory_id, content_hash, artifact_type, trust
--   gives: ordinal, artifact_id, trajectory_id, scope_id, artifact_type, schema_version, content, content_hash, extraction_method, trust, ttl_kind, ttl_ms, token_count, created_at, updated_at, confidence, source_turn, session_id, expires_at, superseded_by, rolled_back_at, retired_at, occurred_at, idempotency_key, author_id, version
SELECT "ordinal", "artifact_id", "trajectory_id", "scope_id", "artifact_type", "schema_version", "content", "content_hash", "extraction_method", "trust", "ttl_kind", "ttl_ms", "token_count", "created_at", "updated_at", "confidence", "source_turn", "session_id", "expires_at", "superseded_by", "rolled_back_at", "retired_at", "occurred_at", "idempotency_key", "author_id", "version" FROM "artifact" WHERE "trajectory_id" = ?1 AND "content_hash" = ?2 AND "artifact_type" = ?3 AND "trust" = ?4 AND "superseded_by" IS NULL AND "rolled_back_at" IS NULL AND "retired_at" IS NULL;

-- artifact.by_trajectory_id_idempotency_key
--   takes: trajectory_id, idempotency_key
--   gives: ordinal, artifact_id, trajectory_id, scope_id, artifact_type, schema_version, content, content_hash, extraction_method, trust, ttl_kind, ttl_ms, token_count, created_at, updated_at, confidence, source_turn, session_id, expires_at, superseded_by, rolled_back_at, retired_at, occurred_at, idempotency_key, author_id, version
SELECT "ordinal", "artifact_id", "trajectory_id", "scope_id", "artifact_type", "schema_version", "content", "content_hash", "extraction_method", "trust", "ttl_kind", "ttl_ms", "token_count", "created_at", "updated_at", "confidence", "source_turn", "session_id", "expires_at", "superseded_by", "rolled_back_at", "retired_at", "occurred_at", "idempotency_key", "author_id", "version" FROM "artifact" WHERE "trajectory_id" = ?1 AND "idempotency_key" = ?2 AND "idempotency_key" IS NOT NULL;

-- artifact.lapsed
--   takes: expires_at
--   gives: ordinal, artifact_id, trajectory_id, scope_id, artifact_type, schema_version, content, content_hash, extraction_method, trust, ttl_kind, ttl_ms, token_count, created_at, updated_at, confidence, source_turn, session_id, expires_at, superseded_by, rolled_back_at, retired_at, occurred_at, idempotency_key, author_id, version
SELECT "ordinal", "artifact_id", "trajectory_id", "scope_id", "artifact_type", "schema_version", "content", "content_hash", "extraction_method", "trust", "ttl_kind", "ttl_ms", "token_count", "created_at", "updated_at", "confidence", "source_turn", "session_id", "expires_at", "superseded_by", "rolled_back_at", "retired_at", "occurred_at", "idempotency_key", "author_id", "version" FROM "artifact" WHERE "expires_at" <= ?1 AND (("rolled_back_at" IS NULL AND "superseded_by" IS NULL) AND "retired_at" IS NULL);

-- artifact.expired
--   takes: created_until, limit
--   gives: artifact_id
SELECT "artifact_id" FROM "artifact" WHERE "created_at" <= ?1 AND (("rolled_back_at" IS NULL AND "superseded_by" IS NULL) AND "retired_at" IS NULL) ORDER BY "ordinal" LIMIT ?2;

-- artifact.stale
--   takes: created_until, confidence_below
--   gives: ordinal, artifact_id, trajectory_id, scope_id, artifact_type, schema_version, content, content_hash, extraction_method, trust, ttl_kind, ttl_ms, token_count, created_at, updated_at, confidence, source_turn, session_id, expires_at, superseded_by, rolled_back_at, retired_at, occurred_at, idempotency_key, author_id, version
SELECT "ordinal", "artifact_id", "trajectory_id", "scope_id", "artifact_type", "schema_version", "content", "content_hash", "extraction_method", "trust", "ttl_kind", "ttl_ms", "token_count", "created_at", "updated_at", "confidence", "source_turn", "session_id", "expires_at", "superseded_by", "rolled_back_at", "retired_at", "occurred_at", "idempotency_key", "author_id", "version" FROM "artifact" WHERE "created_at" <= ?1 AND coalesce("confidence", 1) < CAST(?2 AS DOUBLE PRECISION) AND (("rolled_back_at" IS NULL AND "superseded_by" IS NULL) AND "retired_at" IS NULL) ORDER BY "ordinal";

-- artifact.surplus
--   takes: keep, limit
--   gives: artifact_id
SELECT "artifact_id" FROM (SELECT "artifact_id", "ordinal", row_number() OVER (ORDER BY "created_at" DESC, "ordinal" DESC) AS place FROM "artifact" WHERE (("rolled_back_at" IS NULL AND "superseded_by" IS NULL) AND "retired_at" IS NULL)) AS ranked WHERE place > ?1 ORDER BY "ordinal" LIMIT ?2;

-- artifact.surplus_by_trajectory
--   takes: keep, limit
--   gives: artifact_id
SELECT "artifact_id" FROM (SELECT "artifact_id", "ordinal", row_number() OVER (PARTITION BY "trajectory_id" ORDER BY "created_at" DESC, "ordinal" DESC) AS place FROM "artifact" WHERE (("rolled_back_at" IS NULL AND "superseded_by" IS NULL) AND "retired_at" IS NULL)) AS ranked WHERE place > ?1 ORDER BY "ordinal" LIMIT ?2;

-- ===== note

CREATE TABLE "note" (
  "ordinal" INTEGER PRIMARY KEY AUTOINCREMENT,
  "note_id" BLOB NOT NULL CHECK (length("note_id") = 16),
  "entity" TEXT NOT NULL,
  "entity_type" TEXT NOT NULL,
  "note_type" TEXT NOT NULL CHECK ("note_type" IN ('convention', 'strategy', 'gotcha', 'fact', 'preference', 'relationship', 'procedure', 'meta', 'decision', 'architecture', 'coordination', 'pattern', 'skill', 'bug', 'test', 'implementation', 'untyped')),
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

-- note.find_many
--   takes: ids
--   gives: ordinal, note_id, entity, entity_type, note_type, content, content_hash, fingerprint, confidence, trust, token_count, created_at, updated_at, importance, base_importance, valid_from, valid_until, source_trajectory_ids, occurred_at, namespace, tags, visible_to, created_by, superseded_by, archived_at, idempotency_key, version
SELECT "ordinal", "note_id", "entity", "entity_type", "note_type", "content", "content_hash", "fingerprint", "confidence", "trust", "token_count", "created_at", "updated_at", "importance", "base_importance", "valid_from", "valid_until", "source_trajectory_ids", "occurred_at", "namespace", "tags", "visible_to", "created_by", "superseded_by", "archived_at", "idempotency_key", "version" FROM "note" WHERE "note_id" IN (SELECT unhex(value) FROM json_each(?1));

-- note.delete_many
--   takes: ids
--   gives: note_id, version
DELETE FROM "note" WHERE "note_id" IN (SELECT unhex(value) FROM json_each(?1)) RETURNING "note_id", "version";

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

-- note.drawn_from
--   takes: trajectory_id
--   gives: ordinal, note_id, entity, entity_type, note_type, content, content_hash, fingerprint, confidence, trust, token_count, created_at, updated_at, importance, base_importance, valid_from, valid_until, source_trajectory_ids, occurred_at, namespace, tags, visible_to, created_by, superseded_by, archived_at, idempotency_key, version
SELECT "ordinal", "note_id", "entity", "entity_type", "note_type", "content", "content_hash", "fingerprint", "confidence", "trust", "token_count", "created_at", "updated_at", "importance", "base_importance", "valid_from", "valid_until", "source_trajectory_ids", "occurred_at", "namespace", "tags", "visible_to", "created_by", "superseded_by", "archived_at", "idempotency_key", "version" FROM "note" WHERE (instr("source_trajectory_ids", ?1) > 0 AND EXISTS (WITH RECURSIVE member (at) AS (SELECT 1 UNION ALL SELECT at + 16 FROM member WHERE at + 16 < length("source_trajectory_ids")) SELECT 1 FROM member WHERE substr("source_trajectory_ids", at, 16) = ?1)) ORDER BY "created_at", "ordinal";

-- note.expired
--   takes: created_until, limit
--   gives: note_id
SELECT "note_id" FROM "note" WHERE "created_at" <= ?1 AND ("archived_at" IS NULL AND "superseded_by" IS NULL) ORDER BY "ordinal" LIMIT ?2;

-- note.stale
--   takes: created_until, confidence_below
--   gives: ordinal, note_id, entity, entity_type, note_type, content, content_hash, fingerprint, confidence, trust, token_count, created_at, updated_at, importance, base_importance, valid_from, valid_until, source_trajectory_ids, occurred_at, namespace, tags, visible_to, created_by, superseded_by, archived_at, idempotency_key, version
SELECT "ordinal", "note_id", "entity", "entity_type", "note_type", "content", "content_hash", "fingerprint", "confidence", "trust", "token_count", "created_at", "updated_at", "importance", "base_importance", "valid_from", "valid_until", "source_trajectory_ids", "occurred_at", "namespace", "tags", "visible_to", "created_by", "superseded_by", "archived_at", "idempotency_key", "version" FROM "note" WHERE "created_at" <= ?1 AND coalesce("confidence", 1) < CAST(?2 AS DOUBLE PRECISION) AND ("archived_at" IS NULL AND "superseded_by" IS NULL) ORDER BY "ordinal";

-- note.surplus
--   takes: keep, limit
--   gives: note_id
SELECT "note_id" FROM (SELECT "note_id", "ordinal", row_number() OVER (ORDER BY "created_at" DESC, "ordinal" DESC) AS place FROM "note" WHERE ("archived_at" IS NULL AND "superseded_by" IS NULL)) AS ranked WHERE place > ?1 ORDER BY "ordinal" LIMIT ?2;

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
  "recovered_to" BLOB CHECK (length("recovered_to") = 16),
  UNIQUE ("checkpoint_id"),
  FOREIGN KEY ("trajectory_id") REFERENCES "trajectory" ("trajectory_id") ON DELETE CASCADE,
  FOREIGN KEY ("scope_id") REFERENCES "scope" ("scope_id") ON DELETE CASCADE
) STRICT;

CREATE INDEX "ix_checkpoint_list_by_trajectory" ON "checkpoint" ("trajectory_id");

CREATE INDEX "ix_checkpoint_scope_id" ON "checkpoint" ("scope_id") WHERE "scope_id" IS NOT NULL;

-- checkpoint.insert
--   takes: ordinal, checkpoint_id, trajectory_id, turn_number, codec, state, recoverable, created_at, scope_id, recovered_to
--   gives: ordinal
INSERT INTO "checkpoint" ("ordinal", "checkpoint_id", "trajectory_id", "turn_number", "codec", "state", "recoverable", "created_at", "scope_id", "recovered_to") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10) RETURNING "ordinal";

-- checkpoint.insert_or_ignore
--   takes: ordinal, checkpoint_id, trajectory_id, turn_number, codec, state, recoverable, created_at, scope_id, recovered_to
--   gives: ordinal
INSERT INTO "checkpoint" ("ordinal", "checkpoint_id", "trajectory_id", "turn_number", "codec", "state", "recoverable", "created_at", "scope_id", "recovered_to") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10) ON CONFLICT DO NOTHING RETURNING "ordinal";

-- checkpoint.upsert
--   takes: ordinal, checkpoint_id, trajectory_id, turn_number, codec, state, recoverable, created_at, scope_id, recovered_to
--   gives: ordinal
INSERT INTO "checkpoint" ("ordinal", "checkpoint_id", "trajectory_id", "turn_number", "codec", "state", "recoverable", "created_at", "scope_id", "recovered_to") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10) ON CONFLICT ("checkpoint_id") DO UPDATE SET "trajectory_id" = excluded."trajectory_id", "turn_number" = excluded."turn_number", "codec" = excluded."codec", "state" = excluded."state", "recoverable" = excluded."recoverable", "created_at" = excluded."created_at", "scope_id" = excluded."scope_id", "recovered_to" = excluded."recovered_to" RETURNING "ordinal";

-- checkpoint.get
--   takes: checkpoint_id
--   gives: ordinal, checkpoint_id, trajectory_id, turn_number, codec, state, recoverable, created_at, scope_id, recovered_to
SELECT "ordinal", "checkpoint_id", "trajectory_id", "turn_number", "codec", "state", "recoverable", "created_at", "scope_id", "recovered_to" FROM "checkpoint" WHERE "checkpoint_id" = ?1;

-- checkpoint.delete
--   takes: checkpoint_id
DELETE FROM "checkpoint" WHERE "checkpoint_id" = ?1;

-- checkpoint.count
--   takes: nothing
--   gives: count
SELECT count(*) FROM "checkpoint";

-- checkpoint.page
--   takes: ordinal, limit
--   gives: ordinal, checkpoint_id, trajectory_id, turn_number, codec, state, recoverable, created_at, scope_id, recovered_to
SELECT "ordinal", "checkpoint_id", "trajectory_id", "turn_number", "codec", "state", "recoverable", "created_at", "scope_id", "recovered_to" FROM "checkpoint" WHERE "ordinal" > ?1 ORDER BY "ordinal" LIMIT ?2;

-- checkpoint.get_many
--   takes: ordinals
--   gives: ordinal, checkpoint_id, trajectory_id, turn_number, codec, state, recoverable, created_at, scope_id, recovered_to
SELECT "ordinal", "checkpoint_id", "trajectory_id", "turn_number", "codec", "state", "recoverable", "created_at", "scope_id", "recovered_to" FROM "checkpoint" WHERE "ordinal" IN (SELECT value FROM json_each(?1));

-- checkpoint.list_by_trajectory
--   takes: trajectory_id, limit
--   gives: ordinal, checkpoint_id, trajectory_id, turn_number, codec, state, recoverable, created_at, scope_id, recovered_to
SELECT "ordinal", "checkpoint_id", "trajectory_id", "turn_number", "codec", "state", "recoverable", "created_at", "scope_id", "recovered_to" FROM "checkpoint" WHERE "trajectory_id" = ?1 ORDER BY "ordinal" DESC LIMIT ?2;

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

-- ===== irregular

-- access_grant.of_records
--   takes: record_ids
--   gives: ordinal, grant_id, to_type, to_id, on_type, on_id, right, granted_by, until, revoked_at, created_at, updated_at, version
SELECT "ordinal", "grant_id", "to_type", "to_id", "on_type", "on_id", "right", "granted_by", "until", "revoked_at", "created_at", "updated_at", "version" FROM "access_grant" WHERE on_id IN (SELECT unhex(value) FROM json_each(?1)) ORDER BY ordinal;

-- agent.renew
--   takes: agent_ids, now
--   gives: ordinal, agent_id, name, agent_type, capabilities, role, memory_access, status, lifecycle, can_delegate_to, reports_to, created_at, updated_at, last_heartbeat, description, version
UPDATE "agent" SET last_heartbeat = ?2, version = version + 1, status = CASE WHEN status = 'failed' THEN 'idle' ELSE status END WHERE agent_id IN (SELECT agent_id FROM "agent" WHERE agent_id IN (SELECT unhex(value) FROM json_each(?1)) ORDER BY agent_id) RETURNING "ordinal", "agent_id", "name", "agent_type", "capabilities", "role", "memory_access", "status", "lifecycle", "can_delegate_to", "reports_to", "created_at", "updated_at", "last_heartbeat", "description", "version";

-- append.scope
--   takes: tokens_input, tokens_output, now, turns, scope_id
--   gives: ordinal, scope_id, trajectory_id, sequence_number, start_turn, opened_at, last_activity_at, end_turn, start_turn_id, end_turn_id, closed_at, summary, summary_tokens, trust, artifact_ids, checkpoint_id, next_sequence, turn_count, tokens_input, tokens_output, rolled_back_at, version
UPDATE "scope" SET next_sequence = next_sequence + ?4, turn_count = turn_count + ?4, tokens_input = tokens_input + ?1, tokens_output = tokens_output + ?2, last_activity_at = ?3, version = version + 1 WHERE scope_id = ?5 AND closed_at IS NULL RETURNING "ordinal", "scope_id", "trajectory_id", "sequence_number", "start_turn", "opened_at", "last_activity_at", "end_turn", "start_turn_id", "end_turn_id", "closed_at", "summary", "summary_tokens", "trust", "artifact_ids", "checkpoint_id", "next_sequence", "turn_count", "tokens_input", "tokens_output", "rolled_back_at", "version";

-- append.trajectory
--   takes: tokens_input, tokens_output, now, turns, scope_id
--   gives: ordinal, trajectory_id, status, initiator_type, initiator_id, goal_hash, created_at, updated_at, last_activity_at, goal, tags, outcome, parent_trajectory_id, session_id, user_id, agent_id, turn_count, tokens_input, tokens_output, version
UPDATE "trajectory" SET turn_count = turn_count + ?4, tokens_input = tokens_input + ?1, tokens_output = tokens_output + ?2, last_activity_at = ?3, version = version + 1 WHERE trajectory_id = (SELECT trajectory_id FROM "scope" WHERE scope_id = ?5) RETURNING "ordinal", "trajectory_id", "status", "initiator_type", "initiator_id", "goal_hash", "created_at", "updated_at", "last_activity_at", "goal", "tags", "outcome", "parent_trajectory_id", "session_id", "user_id", "agent_id", "turn_count", "tokens_input", "tokens_output", "version";

-- change.bounds
--   takes: nothing
--   gives: first, last
SELECT coalesce(min(sequence), 0), coalesce(max(sequence), 0) FROM "change";

-- change.insert
--   takes: writer, entries, created_at
--   gives: sequence
INSERT INTO "change" (writer, entries, created_at) VALUES (?1, ?2, ?3) RETURNING sequence;

-- change.prune
--   takes: older_than, keep_rows
DELETE FROM change WHERE created_at < ?1 AND sequence <= (SELECT sequence FROM change ORDER BY sequence DESC LIMIT 1 OFFSET max(?2, 1));

-- change.since
--   takes: sequence
--   gives: sequence, writer, entries
SELECT sequence, writer, entries FROM "change" WHERE sequence > ?1 ORDER BY sequence;

-- checkpoint.prune
--   takes: trajectory_id, keep, before
WITH asked AS (SELECT ordinal FROM "checkpoint" WHERE trajectory_id = ?1 AND recovered_to IS NULL ORDER BY ordinal DESC LIMIT ?2), made AS (SELECT ordinal, recovered_to FROM "checkpoint" WHERE trajectory_id = ?1 AND recovered_to IS NOT NULL ORDER BY ordinal DESC LIMIT ?2), kept AS (SELECT ordinal, recovered_to FROM made UNION SELECT ordinal, NULL FROM asked UNION SELECT target.ordinal, target.recovered_to FROM "checkpoint" AS target JOIN made ON target.checkpoint_id = made.recovered_to) DELETE FROM "checkpoint" WHERE trajectory_id = ?1 AND ordinal < ?3 AND ordinal NOT IN (SELECT ordinal FROM kept) AND ordinal NOT IN (SELECT max(older.ordinal) FROM kept JOIN "checkpoint" AS older ON older.trajectory_id = ?1 AND older.recovered_to IS NOT NULL AND older.ordinal < kept.ordinal WHERE kept.recovered_to IS NULL GROUP BY kept.ordinal);

-- content.at
--   takes: owner_type, owner_ordinal, owner_version
--   gives: body
SELECT body FROM "content_version" WHERE owner_type = ?1 AND owner_ordinal = ?2 AND owner_version >= ?3 ORDER BY owner_version LIMIT 1;

-- content.owner
--   takes: owner_type, owner_ordinal
--   gives: owner_id
SELECT owner_id FROM "content_version" WHERE owner_type = ?1 AND owner_ordinal = ?2 LIMIT 1;

-- content.prune
--   takes: before
DELETE FROM content_version WHERE replaced_at < min(?1, coalesce((SELECT min(assembled_at) FROM context_window), 9223372036854775807));

-- delegation.any_of_task
--   takes: trajectory_id
--   gives: found
SELECT 1 FROM "delegation" WHERE parent_trajectory_id = ?1 AND completed_at IS NULL UNION ALL SELECT 1 FROM "handoff" WHERE trajectory_id = ?1 AND completed_at IS NULL LIMIT 1;

-- delegation.open_of_task
--   takes: trajectory_id
--   gives: ordinal, delegation_id, delegator_agent_id, task_description, parent_trajectory_id, status, created_at, updated_at, delegatee_agent_id, delegatee_agent_type, child_trajectory_id, shared_artifacts, shared_notes, additional_context, constraints, deadline, result, accepted_at, completed_at, version
SELECT "ordinal", "delegation_id", "delegator_agent_id", "task_description", "parent_trajectory_id", "status", "created_at", "updated_at", "delegatee_agent_id", "delegatee_agent_type", "child_trajectory_id", "shared_artifacts", "shared_notes", "additional_context", "constraints", "deadline", "result", "accepted_at", "completed_at", "version" FROM "delegation" WHERE parent_trajectory_id = ?1 AND completed_at IS NULL ORDER BY created_at, ordinal;

-- delegation.prune
--   takes: ended_before, limit
DELETE FROM "delegation" WHERE "delegation_id" IN (SELECT "delegation_id" FROM "delegation" WHERE "completed_at" IS NOT NULL AND "completed_at" < ?1 AND "status" NOT IN ('accepted', 'in_progress', 'pending') ORDER BY "completed_at", "delegation_id" LIMIT ?2);

-- edge.of_records
--   takes: record_ids
--   gives: ordinal, edge_id, source_type, source_id, target_type, target_id, relation, weight, base_weight, created_at, auto_linked, user_created, last_traversed_at, removed_at, version
SELECT "ordinal", "edge_id", "source_type", "source_id", "target_type", "target_id", "relation", "weight", "base_weight", "created_at", "auto_linked", "user_created", "last_traversed_at", "removed_at", "version" FROM "edge" WHERE source_id IN (SELECT unhex(value) FROM json_each(?1)) UNION SELECT "ordinal", "edge_id", "source_type", "source_id", "target_type", "target_id", "relation", "weight", "base_weight", "created_at", "auto_linked", "user_created", "last_traversed_at", "removed_at", "version" FROM "edge" WHERE target_id IN (SELECT unhex(value) FROM json_each(?1)) ORDER BY ordinal;

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
SELECT owner.ordinal, "artifact_id", NULL, "content", made.content_hash FROM "artifact" AS owner JOIN "embedding" AS made ON made.space_id = ?1 AND made.owner_id = owner."artifact_id" AND made.chunk_index = 0 WHERE length("content") > 0 AND (("rolled_back_at" IS NULL AND "superseded_by" IS NULL) AND "retired_at" IS NULL) AND owner.ordinal > ?2 ORDER BY owner.ordinal LIMIT ?3;

-- embedding.hashes_note
--   takes: space_id, after, limit
--   gives: ordinal, owner_id, head, content, content_hash
SELECT owner.ordinal, "note_id", "entity", "content", made.content_hash FROM "note" AS owner JOIN "embedding" AS made ON made.space_id = ?1 AND made.owner_id = owner."note_id" AND made.chunk_index = 0 WHERE length("content") > 0 AND ("archived_at" IS NULL AND "superseded_by" IS NULL) AND owner.ordinal > ?2 ORDER BY owner.ordinal LIMIT ?3;

-- embedding.hashes_scope
--   takes: space_id, after, limit
--   gives: ordinal, owner_id, head, content, content_hash
SELECT owner.ordinal, "scope_id", NULL, "summary", made.content_hash FROM "scope" AS owner JOIN "embedding" AS made ON made.space_id = ?1 AND made.owner_id = owner."scope_id" AND made.chunk_index = 0 WHERE length("summary") > 0 AND "rolled_back_at" IS NULL AND owner.ordinal > ?2 ORDER BY owner.ordinal LIMIT ?3;

-- embedding.hashes_todo
--   takes: space_id, after, limit
--   gives: ordinal, owner_id, head, content, content_hash
SELECT owner.ordinal, "todo_id", NULL, "title", made.content_hash FROM "todo" AS owner JOIN "embedding" AS made ON made.space_id = ?1 AND made.owner_id = owner."todo_id" AND made.chunk_index = 0 WHERE length("title") > 0 AND TRUE AND owner.ordinal > ?2 ORDER BY owner.ordinal LIMIT ?3;

-- embedding.hashes_turn
--   takes: space_id, after, limit
--   gives: ordinal, owner_id, head, content, content_hash
SELECT owner.ordinal, "turn_id", "name", "content", made.content_hash FROM "turn" AS owner JOIN "embedding" AS made ON made.space_id = ?1 AND made.owner_id = owner."turn_id" AND made.chunk_index = 0 WHERE length("content") > 0 AND "rolled_back_at" IS NULL AND owner.ordinal > ?2 ORDER BY owner.ordinal LIMIT ?3;

-- embedding.of_space
--   takes: space_id
--   gives: owner_type, vectors, records
SELECT owner_type, count(*), count(DISTINCT owner_id) FROM "embedding" WHERE space_id = ?1 GROUP BY owner_type ORDER BY owner_type;

-- embedding.pending_artifact
--   takes: space_id, before, limit
--   gives: ordinal, owner_id, head, content
SELECT ordinal, "artifact_id", NULL, "content" FROM "artifact" AS owner WHERE length("content") > 0 AND (("rolled_back_at" IS NULL AND "superseded_by" IS NULL) AND "retired_at" IS NULL) AND NOT EXISTS (SELECT 1 FROM "embedding" WHERE space_id = ?1 AND owner_id = owner."artifact_id") AND ordinal < ?2 ORDER BY ordinal DESC LIMIT ?3;

-- embedding.pending_note
--   takes: space_id, before, limit
--   gives: ordinal, owner_id, head, content
SELECT ordinal, "note_id", "entity", "content" FROM "note" AS owner WHERE length("content") > 0 AND ("archived_at" IS NULL AND "superseded_by" IS NULL) AND NOT EXISTS (SELECT 1 FROM "embedding" WHERE space_id = ?1 AND owner_id = owner."note_id") AND ordinal < ?2 ORDER BY ordinal DESC LIMIT ?3;

-- embedding.pending_scope
--   takes: space_id, before, limit
--   gives: ordinal, owner_id, head, content
SELECT ordinal, "scope_id", NULL, "summary" FROM "scope" AS owner WHERE length("summary") > 0 AND "rolled_back_at" IS NULL AND NOT EXISTS (SELECT 1 FROM "embedding" WHERE space_id = ?1 AND owner_id = owner."scope_id") AND ordinal < ?2 ORDER BY ordinal DESC LIMIT ?3;

-- embedding.pending_todo
--   takes: space_id, before, limit
--   gives: ordinal, owner_id, head, content
SELECT ordinal, "todo_id", NULL, "title" FROM "todo" AS owner WHERE length("title") > 0 AND TRUE AND NOT EXISTS (SELECT 1 FROM "embedding" WHERE space_id = ?1 AND owner_id = owner."todo_id") AND ordinal < ?2 ORDER BY ordinal DESC LIMIT ?3;

-- embedding.pending_turn
--   takes: space_id, before, limit
--   gives: ordinal, owner_id, head, content
SELECT ordinal, "turn_id", "name", "content" FROM "turn" AS owner WHERE length("content") > 0 AND "rolled_back_at" IS NULL AND NOT EXISTS (SELECT 1 FROM "embedding" WHERE space_id = ?1 AND owner_id = owner."turn_id") AND ordinal < ?2 ORDER BY ordinal DESC LIMIT ?3;

-- embedding.pending_up_artifact
--   takes: space_id, after, limit
--   gives: ordinal, owner_id, head, content
SELECT ordinal, "artifact_id", NULL, "content" FROM "artifact" AS owner WHERE length("content") > 0 AND (("rolled_back_at" IS NULL AND "superseded_by" IS NULL) AND "retired_at" IS NULL) AND NOT EXISTS (SELECT 1 FROM "embedding" WHERE space_id = ?1 AND owner_id = owner."artifact_id") AND ordinal > ?2 ORDER BY ordinal LIMIT ?3;

-- embedding.pending_up_note
--   takes: space_id, after, limit
--   gives: ordinal, owner_id, head, content
SELECT ordinal, "note_id", "entity", "content" FROM "note" AS owner WHERE length("content") > 0 AND ("archived_at" IS NULL AND "superseded_by" IS NULL) AND NOT EXISTS (SELECT 1 FROM "embedding" WHERE space_id = ?1 AND owner_id = owner."note_id") AND ordinal > ?2 ORDER BY ordinal LIMIT ?3;

-- embedding.pending_up_scope
--   takes: space_id, after, limit
--   gives: ordinal, owner_id, head, content
SELECT ordinal, "scope_id", NULL, "summary" FROM "scope" AS owner WHERE length("summary") > 0 AND "rolled_back_at" IS NULL AND NOT EXISTS (SELECT 1 FROM "embedding" WHERE space_id = ?1 AND owner_id = owner."scope_id") AND ordinal > ?2 ORDER BY ordinal LIMIT ?3;

-- embedding.pending_up_todo
--   takes: space_id, after, limit
--   gives: ordinal, owner_id, head, content
SELECT ordinal, "todo_id", NULL, "title" FROM "todo" AS owner WHERE length("title") > 0 AND TRUE AND NOT EXISTS (SELECT 1 FROM "embedding" WHERE space_id = ?1 AND owner_id = owner."todo_id") AND ordinal > ?2 ORDER BY ordinal LIMIT ?3;

-- embedding.pending_up_turn
--   takes: space_id, after, limit
--   gives: ordinal, owner_id, head, content
SELECT ordinal, "turn_id", "name", "content" FROM "turn" AS owner WHERE length("content") > 0 AND "rolled_back_at" IS NULL AND NOT EXISTS (SELECT 1 FROM "embedding" WHERE space_id = ?1 AND owner_id = owner."turn_id") AND ordinal > ?2 ORDER BY ordinal LIMIT ?3;

-- embedding.progress_artifact
--   takes: space_id
--   gives: total, pending
SELECT count(*), coalesce(sum(CASE WHEN EXISTS (SELECT 1 FROM "embedding" WHERE space_id = ?1 AND owner_id = owner."artifact_id") THEN 0 ELSE 1 END), 0) FROM "artifact" AS owner WHERE length("content") > 0 AND (("rolled_back_at" IS NULL AND "superseded_by" IS NULL) AND "retired_at" IS NULL);

-- embedding.progress_note
--   takes: space_id
--   gives: total, pending
SELECT count(*), coalesce(sum(CASE WHEN EXISTS (SELECT 1 FROM "embedding" WHERE space_id = ?1 AND owner_id = owner."note_id") THEN 0 ELSE 1 END), 0) FROM "note" AS owner WHERE length("content") > 0 AND ("archived_at" IS NULL AND "superseded_by" IS NULL);

-- embedding.progress_scope
--   takes: space_id
--   gives: total, pending
SELECT count(*), coalesce(sum(CASE WHEN EXISTS (SELECT 1 FROM "embedding" WHERE space_id = ?1 AND owner_id = owner."scope_id") THEN 0 ELSE 1 END), 0) FROM "scope" AS owner WHERE length("summary") > 0 AND "rolled_back_at" IS NULL;

-- embedding.progress_todo
--   takes: space_id
--   gives: total, pending
SELECT count(*), coalesce(sum(CASE WHEN EXISTS (SELECT 1 FROM "embedding" WHERE space_id = ?1 AND owner_id = owner."todo_id") THEN 0 ELSE 1 END), 0) FROM "todo" AS owner WHERE length("title") > 0 AND TRUE;

-- embedding.progress_turn
--   takes: space_id
--   gives: total, pending
SELECT count(*), coalesce(sum(CASE WHEN EXISTS (SELECT 1 FROM "embedding" WHERE space_id = ?1 AND owner_id = owner."turn_id") THEN 0 ELSE 1 END), 0) FROM "turn" AS owner WHERE length("content") > 0 AND "rolled_back_at" IS NULL;

-- embedding.spaceless
--   takes: after, limit
--   gives: ordinal
SELECT ordinal FROM "embedding" AS stray WHERE ordinal > ?1 AND NOT EXISTS (SELECT 1 FROM "embedding_space" WHERE space_id = stray.space_id) ORDER BY ordinal LIMIT ?2;

-- embedding.strays_artifact
--   takes: after, limit
--   gives: ordinal, is_gone
SELECT stray.ordinal, owner."artifact_id" IS NULL FROM "embedding" AS stray LEFT JOIN "artifact" AS owner ON owner."artifact_id" = stray.owner_id WHERE stray.owner_type = 'artifact' AND stray.ordinal > ?1 AND (owner."artifact_id" IS NULL OR NOT ((("rolled_back_at" IS NULL AND "superseded_by" IS NULL) AND "retired_at" IS NULL))) ORDER BY stray.ordinal LIMIT ?2;

-- embedding.strays_note
--   takes: after, limit
--   gives: ordinal, is_gone
SELECT stray.ordinal, owner."note_id" IS NULL FROM "embedding" AS stray LEFT JOIN "note" AS owner ON owner."note_id" = stray.owner_id WHERE stray.owner_type = 'note' AND stray.ordinal > ?1 AND (owner."note_id" IS NULL OR NOT (("archived_at" IS NULL AND "superseded_by" IS NULL))) ORDER BY stray.ordinal LIMIT ?2;

-- embedding.strays_scope
--   takes: after, limit
--   gives: ordinal, is_gone
SELECT stray.ordinal, owner."scope_id" IS NULL FROM "embedding" AS stray LEFT JOIN "scope" AS owner ON owner."scope_id" = stray.owner_id WHERE stray.owner_type = 'scope' AND stray.ordinal > ?1 AND (owner."scope_id" IS NULL OR NOT ("rolled_back_at" IS NULL)) ORDER BY stray.ordinal LIMIT ?2;

-- embedding.strays_todo
--   takes: after, limit
--   gives: ordinal, is_gone
SELECT stray.ordinal, owner."todo_id" IS NULL FROM "embedding" AS stray LEFT JOIN "todo" AS owner ON owner."todo_id" = stray.owner_id WHERE stray.owner_type = 'todo' AND stray.ordinal > ?1 AND (owner."todo_id" IS NULL) ORDER BY stray.ordinal LIMIT ?2;

-- embedding.strays_turn
--   takes: after, limit
--   gives: ordinal, is_gone
SELECT stray.ordinal, owner."turn_id" IS NULL FROM "embedding" AS stray LEFT JOIN "turn" AS owner ON owner."turn_id" = stray.owner_id WHERE stray.owner_type = 'turn' AND stray.ordinal > ?1 AND (owner."turn_id" IS NULL OR NOT ("rolled_back_at" IS NULL)) ORDER BY stray.ordinal LIMIT ?2;

-- embedding.unmoved_artifact
--   takes: space_id, from_space_id, after, limit
--   gives: ordinal, owner_id
SELECT ordinal, "artifact_id" FROM "artifact" AS owner WHERE length("content") > 0 AND (("rolled_back_at" IS NULL AND "superseded_by" IS NULL) AND "retired_at" IS NULL) AND NOT EXISTS (SELECT 1 FROM "embedding" WHERE space_id = ?1 AND owner_id = owner."artifact_id") AND EXISTS (SELECT 1 FROM "embedding" WHERE space_id = ?2 AND owner_id = owner."artifact_id") AND ordinal > ?3 ORDER BY ordinal LIMIT ?4;

-- embedding.unmoved_note
--   takes: space_id, from_space_id, after, limit
--   gives: ordinal, owner_id
SELECT ordinal, "note_id" FROM "note" AS owner WHERE length("content") > 0 AND ("archived_at" IS NULL AND "superseded_by" IS NULL) AND NOT EXISTS (SELECT 1 FROM "embedding" WHERE space_id = ?1 AND owner_id = owner."note_id") AND EXISTS (SELECT 1 FROM "embedding" WHERE space_id = ?2 AND owner_id = owner."note_id") AND ordinal > ?3 ORDER BY ordinal LIMIT ?4;

-- embedding.unmoved_scope
--   takes: space_id, from_space_id, after, limit
--   gives: ordinal, owner_id
SELECT ordinal, "scope_id" FROM "scope" AS owner WHERE length("summary") > 0 AND "rolled_back_at" IS NULL AND NOT EXISTS (SELECT 1 FROM "embedding" WHERE space_id = ?1 AND owner_id = owner."scope_id") AND EXISTS (SELECT 1 FROM "embedding" WHERE space_id = ?2 AND owner_id = owner."scope_id") AND ordinal > ?3 ORDER BY ordinal LIMIT ?4;

-- embedding.unmoved_todo
--   takes: space_id, from_space_id, after, limit
--   gives: ordinal, owner_id
SELECT ordinal, "todo_id" FROM "todo" AS owner WHERE length("title") > 0 AND TRUE AND NOT EXISTS (SELECT 1 FROM "embedding" WHERE space_id = ?1 AND owner_id = owner."todo_id") AND EXISTS (SELECT 1 FROM "embedding" WHERE space_id = ?2 AND owner_id = owner."todo_id") AND ordinal > ?3 ORDER BY ordinal LIMIT ?4;

-- embedding.unmoved_turn
--   takes: space_id, from_space_id, after, limit
--   gives: ordinal, owner_id
SELECT ordinal, "turn_id" FROM "turn" AS owner WHERE length("content") > 0 AND "rolled_back_at" IS NULL AND NOT EXISTS (SELECT 1 FROM "embedding" WHERE space_id = ?1 AND owner_id = owner."turn_id") AND EXISTS (SELECT 1 FROM "embedding" WHERE space_id = ?2 AND owner_id = owner."turn_id") AND ordinal > ?3 ORDER BY ordinal LIMIT ?4;

-- embedding_cache.drop_some
--   takes: model_id, dimensions, limit
DELETE FROM "embedding_cache" WHERE (content_hash, model_id, dimensions) IN (SELECT content_hash, model_id, dimensions FROM "embedding_cache" WHERE model_id = ?1 AND dimensions = ?2 LIMIT ?3);

-- embedding_cache.prune
--   takes: older_than
DELETE FROM "embedding_cache" WHERE created_at < ?1;

-- event.drop_many
--   takes: ordinals
DELETE FROM "event" WHERE ordinal IN (SELECT value FROM json_each(?1));

-- event.drop_trace
--   takes: trajectory_id
DELETE FROM "event" WHERE trajectory_id = ?1 AND family = 'trace';

-- event.prune
--   takes: older_than
DELETE FROM "event" WHERE created_at < ?1 AND family <> 'audit';

-- event.recent
--   takes: family, since, limit
--   gives: ordinal, event_id, family, event_type, created_at, trajectory_id, scope_id, subject_type, subject_id, principal, payload, duration_ms
SELECT "ordinal", "event_id", "family", "event_type", "created_at", "trajectory_id", "scope_id", "subject_type", "subject_id", "principal", "payload", "duration_ms" FROM "event" WHERE family = ?1 AND created_at >= ?2 ORDER BY created_at DESC LIMIT ?3;

-- handoff.brief_by_agent
--   takes: agent_id
--   gives: ordinal, handoff_id, from_agent_id, trajectory_id, scope_id, context_snapshot_id, snapshot, handoff_notes, reason, status, initiated_at, updated_at, to_agent_id, to_agent_type, next_steps, blockers, open_questions, accepted_at, completed_at, rejection_reason, version
SELECT "ordinal", "handoff_id", "from_agent_id", "trajectory_id", "scope_id", "context_snapshot_id", CAST('' AS BLOB), "handoff_notes", "reason", "status", "initiated_at", "updated_at", "to_agent_id", "to_agent_type", "next_steps", "blockers", "open_questions", "accepted_at", "completed_at", "rejection_reason", "version" FROM "handoff" WHERE from_agent_id = ?1 OR to_agent_id = ?1 ORDER BY initiated_at, ordinal;

-- handoff.brief_by_status
--   takes: status
--   gives: ordinal, handoff_id, from_agent_id, trajectory_id, scope_id, context_snapshot_id, snapshot, handoff_notes, reason, status, initiated_at, updated_at, to_agent_id, to_agent_type, next_steps, blockers, open_questions, accepted_at, completed_at, rejection_reason, version
SELECT "ordinal", "handoff_id", "from_agent_id", "trajectory_id", "scope_id", "context_snapshot_id", CAST('' AS BLOB), "handoff_notes", "reason", "status", "initiated_at", "updated_at", "to_agent_id", "to_agent_type", "next_steps", "blockers", "open_questions", "accepted_at", "completed_at", "rejection_reason", "version" FROM "handoff" WHERE status = ?1 ORDER BY initiated_at, ordinal;

-- handoff.brief_by_trajectory
--   takes: trajectory_id
--   gives: ordinal, handoff_id, from_agent_id, trajectory_id, scope_id, context_snapshot_id, snapshot, handoff_notes, reason, status, initiated_at, updated_at, to_agent_id, to_agent_type, next_steps, blockers, open_questions, accepted_at, completed_at, rejection_reason, version
SELECT "ordinal", "handoff_id", "from_agent_id", "trajectory_id", "scope_id", "context_snapshot_id", CAST('' AS BLOB), "handoff_notes", "reason", "status", "initiated_at", "updated_at", "to_agent_id", "to_agent_type", "next_steps", "blockers", "open_questions", "accepted_at", "completed_at", "rejection_reason", "version" FROM "handoff" WHERE trajectory_id = ?1 ORDER BY initiated_at, ordinal;

-- handoff.brief_pending_of_type
--   takes: agent_type
--   gives: ordinal, handoff_id, from_agent_id, trajectory_id, scope_id, context_snapshot_id, snapshot, handoff_notes, reason, status, initiated_at, updated_at, to_agent_id, to_agent_type, next_steps, blockers, open_questions, accepted_at, completed_at, rejection_reason, version
SELECT "ordinal", "handoff_id", "from_agent_id", "trajectory_id", "scope_id", "context_snapshot_id", CAST('' AS BLOB), "handoff_notes", "reason", "status", "initiated_at", "updated_at", "to_agent_id", "to_agent_type", "next_steps", "blockers", "open_questions", "accepted_at", "completed_at", "rejection_reason", "version" FROM "handoff" WHERE to_agent_type = ?1 AND to_agent_id IS NULL AND status = 'initiated' ORDER BY initiated_at, ordinal;

-- handoff.open_of_task
--   takes: trajectory_id
--   gives: ordinal, handoff_id, from_agent_id, trajectory_id, scope_id, context_snapshot_id, snapshot, handoff_notes, reason, status, initiated_at, updated_at, to_agent_id, to_agent_type, next_steps, blockers, open_questions, accepted_at, completed_at, rejection_reason, version
SELECT "ordinal", "handoff_id", "from_agent_id", "trajectory_id", "scope_id", "context_snapshot_id", "snapshot", "handoff_notes", "reason", "status", "initiated_at", "updated_at", "to_agent_id", "to_agent_type", "next_steps", "blockers", "open_questions", "accepted_at", "completed_at", "rejection_reason", "version" FROM "handoff" WHERE trajectory_id = ?1 AND completed_at IS NULL ORDER BY initiated_at, ordinal;

-- handoff.prune
--   takes: ended_before, limit
DELETE FROM "handoff" WHERE "handoff_id" IN (SELECT "handoff_id" FROM "handoff" WHERE "completed_at" IS NOT NULL AND "completed_at" < ?1 AND "status" NOT IN ('initiated', 'accepted') ORDER BY "completed_at", "handoff_id" LIMIT ?2);

-- job.claim
--   takes: kind, now, until, claimant, limit
--   gives: job_id, kind, key, payload, principal_kind, principal_id, principal_role, principal_admin, created_at, due_at, available_at, scheduled_at, trajectory_id, scope_id, begun_at, claimed_by, attempts, error, done, total, ended_at, outcome, version
UPDATE "job" SET available_at = ?3, scheduled_at = ?2, begun_at = coalesce(begun_at, ?2), claimed_by = ?4, attempts = attempts + 1, version = version + 1 WHERE job_id IN (SELECT job_id FROM "job" WHERE kind = ?1 AND ended_at IS NULL AND available_at <= ?2 ORDER BY available_at LIMIT ?5) RETURNING "job_id", "kind", "key", "payload", "principal_kind", "principal_id", "principal_role", "principal_admin", "created_at", "due_at", "available_at", "scheduled_at", "trajectory_id", "scope_id", "begun_at", "claimed_by", "attempts", "error", "done", "total", "ended_at", "outcome", "version";

-- job.claim_one
--   takes: job_id, now, until, claimant
--   gives: job_id, kind, key, payload, principal_kind, principal_id, principal_role, principal_admin, created_at, due_at, available_at, scheduled_at, trajectory_id, scope_id, begun_at, claimed_by, attempts, error, done, total, ended_at, outcome, version
UPDATE "job" SET available_at = ?3, scheduled_at = ?2, begun_at = coalesce(begun_at, ?2), claimed_by = ?4, attempts = attempts + 1, version = version + 1 WHERE job_id = ?1 AND ended_at IS NULL AND (claimed_by IS NULL OR available_at <= ?2) RETURNING "job_id", "kind", "key", "payload", "principal_kind", "principal_id", "principal_role", "principal_admin", "created_at", "due_at", "available_at", "scheduled_at", "trajectory_id", "scope_id", "begun_at", "claimed_by", "attempts", "error", "done", "total", "ended_at", "outcome", "version";

-- job.counts
--   takes: nothing
--   gives: kind, jobs
SELECT kind, count(*) FROM "job" WHERE ended_at IS NULL GROUP BY kind ORDER BY kind;

-- job.end
--   takes: job_id, version, now, outcome
--   gives: erasures
UPDATE "job" SET ended_at = ?3, outcome = ?4, claimed_by = NULL, version = version + 1 WHERE job_id = ?1 AND version = ?2 AND ended_at IS NULL RETURNING (SELECT count(*) FROM "erasure");

-- job.end_of_task
--   takes: job_id, version, now, outcome, trajectory_id
--   gives: erasures
UPDATE "job" SET ended_at = ?3, outcome = ?4, claimed_by = NULL, version = version + 1 WHERE job_id = ?1 AND version = ?2 AND trajectory_id = (SELECT trajectory_id FROM "trajectory" WHERE trajectory_id = ?5) AND ended_at IS NULL RETURNING (SELECT count(*) FROM "erasure");

-- job.extend
--   takes: job_id, version, now, until
UPDATE "job" SET scheduled_at = ?3, available_at = ?4 WHERE job_id = ?1 AND version = ?2 AND ended_at IS NULL;

-- job.hold
--   takes: job_id, version
--   gives: job_id
SELECT job_id FROM "job" WHERE job_id = ?1 AND version = ?2 AND ended_at IS NULL;

-- job.list_ended
--   takes: outcome, kind, limit
--   gives: job_id, kind, key, payload, principal_kind, principal_id, principal_role, principal_admin, created_at, due_at, available_at, scheduled_at, trajectory_id, scope_id, begun_at, claimed_by, attempts, error, done, total, ended_at, outcome, version
SELECT "job_id", "kind", "key", "payload", "principal_kind", "principal_id", "principal_role", "principal_admin", "created_at", "due_at", "available_at", "scheduled_at", "trajectory_id", "scope_id", "begun_at", "claimed_by", "attempts", "error", "done", "total", "ended_at", "outcome", "version" FROM "job" WHERE ended_at IS NOT NULL AND outcome = ?1 AND (?2 = '' OR kind = ?2) ORDER BY ended_at DESC LIMIT ?3;

-- job.list_open
--   takes: kind, state, limit
--   gives: job_id, kind, key, payload, principal_kind, principal_id, principal_role, principal_admin, created_at, due_at, available_at, scheduled_at, trajectory_id, scope_id, begun_at, claimed_by, attempts, error, done, total, ended_at, outcome, version
SELECT "job_id", "kind", "key", "payload", "principal_kind", "principal_id", "principal_role", "principal_admin", "created_at", "due_at", "available_at", "scheduled_at", "trajectory_id", "scope_id", "begun_at", "claimed_by", "attempts", "error", "done", "total", "ended_at", "outcome", "version" FROM "job" WHERE ended_at IS NULL AND (?1 = '' OR kind = ?1) AND (?2 = '' OR (claimed_by IS NULL) = (?2 = 'waiting')) ORDER BY kind, available_at LIMIT ?3;

-- job.next
--   takes: kinds, ahead
--   gives: kind, available_at, is_ahead
SELECT value, (SELECT available_at FROM "job" WHERE kind = value AND ended_at IS NULL ORDER BY available_at LIMIT 1), (SELECT scheduled_at FROM "job" WHERE ended_at IS NULL AND scheduled_at >= ?2 ORDER BY scheduled_at DESC LIMIT 1) IS NOT NULL FROM (SELECT value FROM json_each(?1)) AS kinds;

-- job.prune
--   takes: ended_before
DELETE FROM "job" WHERE outcome IN ('done', 'failed', 'cancelled') AND ended_at < ?1;

-- job.prune_abandoned
--   takes: available_before, kinds
DELETE FROM "job" WHERE ended_at IS NULL AND available_at < ?1 AND kind NOT IN (SELECT value FROM json_each(?2));

-- job.report
--   takes: job_id, version, done, total
UPDATE "job" SET attempts = CASE WHEN done < ?3 THEN 1 ELSE attempts END, error = CASE WHEN done < ?3 THEN NULL ELSE error END, done = ?3, total = ?4 WHERE job_id = ?1 AND version = ?2 AND ended_at IS NULL;

-- lock.delete_ended
--   takes: now, resources
--   gives: token
DELETE FROM "lock" AS old WHERE old.resource IN (SELECT value FROM json_each(?2)) AND old.expires_at <= ?1 AND old.resource > '' AND (EXISTS (SELECT 1 FROM "lock" AS newer WHERE newer.resource = old.resource AND newer.token > old.token) OR NOT EXISTS (SELECT 1 FROM "lock" AS live WHERE live.resource = old.resource AND live.expires_at > ?1)) RETURNING token;

-- lock.ended
--   takes: now, after_resource, limit
--   gives: resource, is_free
SELECT resource, 1 FROM (SELECT resource FROM lock AS old WHERE old.expires_at <= ?1 AND old.resource > '' AND (EXISTS (SELECT 1 FROM "lock" AS newer WHERE newer.resource = old.resource AND newer.token > old.token) OR NOT EXISTS (SELECT 1 FROM "lock" AS live WHERE live.resource = old.resource AND live.expires_at > ?1)) UNION SELECT resource FROM lock_waiter WHERE expires_at <= ?1) WHERE resource > ?2 ORDER BY resource LIMIT ?3;

-- lock.held
--   takes: resource, token, now
--   gives: holder
SELECT holder FROM "lock" WHERE resource = ?1 AND token = ?2 AND expires_at > ?3;

-- lock.list_live
--   takes: now, holder, limit
--   gives: ordinal, lock_id, resource, holder, mode, token, acquired_at, expires_at, version
SELECT "ordinal", "lock_id", "resource", "holder", "mode", "token", "acquired_at", "expires_at", "version" FROM "lock" WHERE expires_at > ?1 AND (holder = ?2 OR ?2 IS NULL) ORDER BY expires_at, lock_id LIMIT ?3;

-- lock.of_resource
--   takes: resource
--   gives: ordinal, lock_id, resource, holder, mode, token, acquired_at, expires_at, version
SELECT "ordinal", "lock_id", "resource", "holder", "mode", "token", "acquired_at", "expires_at", "version" FROM "lock" WHERE resource IN (?1, '') ORDER BY token;

-- lock.serialize
--   takes: resource
--   gives: serialized
SELECT ?1 IS NOT NULL;

-- lock_waiter.delete_ended
--   takes: now, resources
DELETE FROM "lock_waiter" WHERE expires_at <= ?1 AND resource IN (SELECT value FROM json_each(?2));

-- lock_waiter.list_live
--   takes: now, holder, limit
--   gives: ordinal, waiter_id, resource, holder, mode, ticket, queued_at, renewed_at, expires_at, version
SELECT "ordinal", "waiter_id", "resource", "holder", "mode", "ticket", "queued_at", "renewed_at", "expires_at", "version" FROM "lock_waiter" WHERE expires_at > ?1 AND (holder = ?2 OR ?2 IS NULL) ORDER BY resource, ticket LIMIT ?3;

-- memory.revision
--   takes: nothing
--   gives: memories, versions
SELECT count(*), CAST(coalesce(sum(version), 0) AS BIGINT) FROM "memory_type";

-- message.ack
--   takes: message_ids, claim_id, now, claimed_by
--   gives: message_id, mailbox, topic
UPDATE "agent_message" SET ended_at = ?3, outcome = 'acknowledged', version = version + 1 WHERE message_id IN (SELECT unhex(value) FROM json_each(?1)) AND claim_id = ?2 AND claimed_by = ?4 AND ended_at IS NULL RETURNING message_id, mailbox, topic;

-- message.backlog
--   takes: mailbox, now, limit
--   gives: messages
SELECT count(*) FROM (SELECT 1 FROM "agent_message" AS m WHERE m.mailbox = ?1 AND m.ended_at IS NULL AND (m.expires_at IS NULL OR m.expires_at > ?2) LIMIT ?3) AS waiting;

-- message.claim
--   takes: mailbox, rank, now, until, ahead, claim_id, claimed_by, limit
--   gives: ordinal, message_id, mailbox, from_agent_id, to_agent_id, to_agent_type, message_type, topic, rank, payload, created_at, available_at, expires_at, trajectory_id, scope_id, artifact_ids, reply_to, awaits_reply, broadcast_id, idempotency_key, claim_id, claimed_by, claimed_at, attempts, delivered_at, ended_at, outcome, version
UPDATE "agent_message" SET available_at = ?4, claimed_at = ?3, claim_id = ?6, claimed_by = ?7, attempts = attempts + 1, delivered_at = coalesce(delivered_at, ?3), version = version + 1 WHERE ordinal IN (SELECT m.ordinal FROM "agent_message" AS m WHERE m.mailbox = ?1 AND m.ended_at IS NULL AND (m.expires_at IS NULL OR m.expires_at > ?3) AND (m.available_at <= ?3 OR m.claimed_at >= ?5) AND (m.topic IS NULL OR NOT EXISTS (SELECT 1 FROM "agent_message" AS e WHERE e.mailbox = m.mailbox AND e.from_agent_id = m.from_agent_id AND e.topic = m.topic AND e.ordinal < m.ordinal AND e.ended_at IS NULL AND (e.expires_at IS NULL OR e.expires_at > ?3))) AND m.rank <= ?2 ORDER BY m.rank, m.ordinal LIMIT ?8) RETURNING "ordinal", "message_id", "mailbox", "from_agent_id", "to_agent_id", "to_agent_type", "message_type", "topic", "rank", "payload", "created_at", "available_at", "expires_at", "trajectory_id", "scope_id", "artifact_ids", "reply_to", "awaits_reply", "broadcast_id", "idempotency_key", "claim_id", "claimed_by", "claimed_at", "attempts", "delivered_at", "ended_at", "outcome", "version";

-- message.expire
--   takes: now
UPDATE "agent_message" SET ended_at = expires_at, outcome = 'expired', version = version + 1 WHERE ended_at IS NULL AND expires_at IS NOT NULL AND expires_at <= ?1 AND (claim_id IS NULL OR available_at <= ?1);

-- message.extend
--   takes: message_ids, claim_id, now, until, claimed_by
--   gives: message_id, mailbox, topic
UPDATE "agent_message" SET claimed_at = ?3, available_at = ?4 WHERE message_id IN (SELECT unhex(value) FROM json_each(?1)) AND claim_id = ?2 AND claimed_by = ?5 AND ended_at IS NULL RETURNING message_id, mailbox, topic;

-- message.list
--   takes: state, now, limit
--   gives: ordinal, message_id, mailbox, from_agent_id, to_agent_id, to_agent_type, message_type, topic, rank, payload, created_at, available_at, expires_at, trajectory_id, scope_id, artifact_ids, reply_to, awaits_reply, broadcast_id, idempotency_key, claim_id, claimed_by, claimed_at, attempts, delivered_at, ended_at, outcome, version
SELECT "ordinal", "message_id", "mailbox", "from_agent_id", "to_agent_id", "to_agent_type", "message_type", "topic", "rank", "payload", "created_at", "available_at", "expires_at", "trajectory_id", "scope_id", "artifact_ids", "reply_to", "awaits_reply", "broadcast_id", "idempotency_key", "claim_id", "claimed_by", "claimed_at", "attempts", "delivered_at", "ended_at", "outcome", "version" FROM "agent_message" WHERE (?1 = '' OR (?1 = 'pending' AND ended_at IS NULL AND claim_id IS NULL AND NOT (expires_at IS NOT NULL AND expires_at <= ?2)) OR (?1 = 'delivered' AND ended_at IS NULL AND claim_id IS NOT NULL AND NOT (expires_at IS NOT NULL AND expires_at <= ?2)) OR outcome = ?1 OR (?1 = 'expired' AND ended_at IS NULL AND expires_at IS NOT NULL AND expires_at <= ?2)) ORDER BY ordinal DESC LIMIT ?3;

-- message.list_of
--   takes: state, now, limit, agent_id, mailbox
--   gives: ordinal, message_id, mailbox, from_agent_id, to_agent_id, to_agent_type, message_type, topic, rank, payload, created_at, available_at, expires_at, trajectory_id, scope_id, artifact_ids, reply_to, awaits_reply, broadcast_id, idempotency_key, claim_id, claimed_by, claimed_at, attempts, delivered_at, ended_at, outcome, version
SELECT "ordinal", "message_id", "mailbox", "from_agent_id", "to_agent_id", "to_agent_type", "message_type", "topic", "rank", "payload", "created_at", "available_at", "expires_at", "trajectory_id", "scope_id", "artifact_ids", "reply_to", "awaits_reply", "broadcast_id", "idempotency_key", "claim_id", "claimed_by", "claimed_at", "attempts", "delivered_at", "ended_at", "outcome", "version" FROM "agent_message" WHERE (?1 = '' OR (?1 = 'pending' AND ended_at IS NULL AND claim_id IS NULL AND NOT (expires_at IS NOT NULL AND expires_at <= ?2)) OR (?1 = 'delivered' AND ended_at IS NULL AND claim_id IS NOT NULL AND NOT (expires_at IS NOT NULL AND expires_at <= ?2)) OR outcome = ?1 OR (?1 = 'expired' AND ended_at IS NULL AND expires_at IS NOT NULL AND expires_at <= ?2)) AND (from_agent_id = ?4 OR to_agent_id = ?4 OR claimed_by = ?4 OR mailbox = ?5) ORDER BY ordinal DESC LIMIT ?3;

-- message.next
--   takes: mailbox, mailbox_of_type, now
--   gives: available_at
SELECT min(m.available_at) FROM "agent_message" AS m WHERE m.mailbox IN (?1, ?2) AND m.ended_at IS NULL AND (m.expires_at IS NULL OR m.expires_at > ?3) AND m.available_at > ?3;

-- message.prune
--   takes: ended_before
DELETE FROM "agent_message" WHERE ended_at IS NOT NULL AND ended_at < ?1;

-- message.ready
--   takes: mailbox, mailbox_of_type, now, ahead
--   gives: rank, rank_of_type
SELECT (SELECT m.rank FROM "agent_message" AS m WHERE m.mailbox = ?1 AND m.ended_at IS NULL AND (m.expires_at IS NULL OR m.expires_at > ?3) AND (m.available_at <= ?3 OR m.claimed_at >= ?4) AND (m.topic IS NULL OR NOT EXISTS (SELECT 1 FROM "agent_message" AS e WHERE e.mailbox = m.mailbox AND e.from_agent_id = m.from_agent_id AND e.topic = m.topic AND e.ordinal < m.ordinal AND e.ended_at IS NULL AND (e.expires_at IS NULL OR e.expires_at > ?3))) ORDER BY m.rank, m.ordinal LIMIT 1), (SELECT m.rank FROM "agent_message" AS m WHERE m.mailbox = ?2 AND m.ended_at IS NULL AND (m.expires_at IS NULL OR m.expires_at > ?3) AND (m.available_at <= ?3 OR m.claimed_at >= ?4) AND (m.topic IS NULL OR NOT EXISTS (SELECT 1 FROM "agent_message" AS e WHERE e.mailbox = m.mailbox AND e.from_agent_id = m.from_agent_id AND e.topic = m.topic AND e.ordinal < m.ordinal AND e.ended_at IS NULL AND (e.expires_at IS NULL OR e.expires_at > ?3))) ORDER BY m.rank, m.ordinal LIMIT 1);

-- message.release
--   takes: message_ids, claim_id, now, until, claimed_by
--   gives: message_id, mailbox, topic
UPDATE "agent_message" SET claimed_at = ?3, available_at = ?4, claim_id = NULL, claimed_by = NULL, version = version + 1 WHERE message_id IN (SELECT unhex(value) FROM json_each(?1)) AND claim_id = ?2 AND claimed_by = ?5 AND ended_at IS NULL RETURNING message_id, mailbox, topic;

-- scope.distrust
--   takes: trust, owner_id
--   gives: ordinal, scope_id, trajectory_id, sequence_number, start_turn, opened_at, last_activity_at, end_turn, start_turn_id, end_turn_id, closed_at, summary, summary_tokens, trust, artifact_ids, checkpoint_id, next_sequence, turn_count, tokens_input, tokens_output, rolled_back_at, version
UPDATE "scope" SET "trust" = ?1, version = version + 1 WHERE "scope_id" = ?2 AND CASE "trust" WHEN 'system' THEN 0 WHEN 'user' THEN 1 WHEN 'tool' THEN 2 WHEN 'web' THEN 3 END < CASE ?1 WHEN 'system' THEN 0 WHEN 'user' THEN 1 WHEN 'tool' THEN 2 WHEN 'web' THEN 3 END RETURNING "ordinal", "scope_id", "trajectory_id", "sequence_number", "start_turn", "opened_at", "last_activity_at", "end_turn", "start_turn_id", "end_turn_id", "closed_at", "summary", "summary_tokens", "trust", "artifact_ids", "checkpoint_id", "next_sequence", "turn_count", "tokens_input", "tokens_output", "rolled_back_at", "version";

-- scope.distrust_loaded
--   takes: after
--   gives: ordinal, scope_id, trajectory_id, sequence_number, start_turn, opened_at, last_activity_at, end_turn, start_turn_id, end_turn_id, closed_at, summary, summary_tokens, trust, artifact_ids, checkpoint_id, next_sequence, turn_count, tokens_input, tokens_output, rolled_back_at, version
WITH loaded AS (SELECT "scope_id" AS of_owner, max(CASE "trust" WHEN 'system' THEN 0 WHEN 'user' THEN 1 WHEN 'tool' THEN 2 WHEN 'web' THEN 3 END) AS least FROM "turn" WHERE ordinal > ?1 GROUP BY "scope_id"), fallen AS (SELECT of_owner, least FROM "scope" AS mine JOIN loaded ON of_owner = mine."scope_id" WHERE CASE mine."trust" WHEN 'system' THEN 0 WHEN 'user' THEN 1 WHEN 'tool' THEN 2 WHEN 'web' THEN 3 END < least ORDER BY of_owner) UPDATE "scope" SET "trust" = CASE least WHEN 0 THEN 'system' WHEN 1 THEN 'user' WHEN 2 THEN 'tool' WHEN 3 THEN 'web' END, version = version + 1 FROM fallen WHERE "scope_id" = of_owner AND CASE "trust" WHEN 'system' THEN 0 WHEN 'user' THEN 1 WHEN 'tool' THEN 2 WHEN 'web' THEN 3 END < least RETURNING "ordinal", "scope_id", "trajectory_id", "sequence_number", "start_turn", "opened_at", "last_activity_at", "end_turn", "start_turn_id", "end_turn_id", "closed_at", "summary", "summary_tokens", "trust", "artifact_ids", "checkpoint_id", "next_sequence", "turn_count", "tokens_input", "tokens_output", "rolled_back_at", "version";

-- scope.next_sequence
--   takes: trajectory_id
--   gives: sequence
SELECT coalesce(max(sequence_number) + 1, 0) FROM "scope" WHERE trajectory_id = ?1;

-- turn.block
--   takes: trajectory_id, scope_id, first_turn, last_turn
--   gives: ordinal, turn_id, trajectory_id, scope_id, sequence, turn_number, role, trust, content, token_count, created_at, occurred_at, name, tool_calls, tool_call_id, thinking, is_error, model_id, idempotency_key, rolled_back_at, raw_form, author_id, utc_offset_s, version
SELECT "ordinal", "turn_id", "trajectory_id", "scope_id", "sequence", "turn_number", "role", "trust", "content", "token_count", "created_at", "occurred_at", "name", "tool_calls", "tool_call_id", "thinking", "is_error", "model_id", "idempotency_key", "rolled_back_at", "raw_form", "author_id", "utc_offset_s", "version" FROM "turn" WHERE trajectory_id = ?1 AND scope_id = ?2 AND turn_number BETWEEN ?3 AND ?4 AND rolled_back_at IS NULL ORDER BY turn_number;

-- turn.hold_block
--   takes: trajectory_id, scope_id, first_turn, last_turn
--   gives: ordinal, turn_id, trajectory_id, scope_id, sequence, turn_number, role, trust, content, token_count, created_at, occurred_at, name, tool_calls, tool_call_id, thinking, is_error, model_id, idempotency_key, rolled_back_at, raw_form, author_id, utc_offset_s, version
SELECT "ordinal", "turn_id", "trajectory_id", "scope_id", "sequence", "turn_number", "role", "trust", "content", "token_count", "created_at", "occurred_at", "name", "tool_calls", "tool_call_id", "thinking", "is_error", "model_id", "idempotency_key", "rolled_back_at", "raw_form", "author_id", "utc_offset_s", "version" FROM "turn" WHERE trajectory_id = ?1 AND scope_id = ?2 AND turn_number BETWEEN ?3 AND ?4 AND rolled_back_at IS NULL ORDER BY turn_number;

-- turn.last_said
--   takes: trajectory_id
--   gives: ordinal, turn_id, trajectory_id, scope_id, sequence, turn_number, role, trust, content, token_count, created_at, occurred_at, name, tool_calls, tool_call_id, thinking, is_error, model_id, idempotency_key, rolled_back_at, raw_form, author_id, utc_offset_s, version
SELECT "ordinal", "turn_id", "trajectory_id", "scope_id", "sequence", "turn_number", "role", "trust", "content", "token_count", "created_at", "occurred_at", "name", "tool_calls", "tool_call_id", "thinking", "is_error", "model_id", "idempotency_key", "rolled_back_at", "raw_form", "author_id", "utc_offset_s", "version" FROM turn WHERE ordinal = (SELECT t.ordinal FROM scope AS s CROSS JOIN turn AS t ON t.scope_id = s.scope_id WHERE s.trajectory_id = ?1 AND t.role = 'user' AND t.rolled_back_at IS NULL ORDER BY s.sequence_number DESC, t.turn_number DESC LIMIT 1);

-- turn.newest
--   takes: scope_id, limit
--   gives: ordinal, turn_id, trajectory_id, scope_id, sequence, turn_number, role, trust, content, token_count, created_at, occurred_at, name, tool_calls, tool_call_id, thinking, is_error, model_id, idempotency_key, rolled_back_at, raw_form, author_id, utc_offset_s, version
SELECT "ordinal", "turn_id", "trajectory_id", "scope_id", "sequence", "turn_number", "role", "trust", "content", "token_count", "created_at", "occurred_at", "name", "tool_calls", "tool_call_id", "thinking", "is_error", "model_id", "idempotency_key", "rolled_back_at", "raw_form", "author_id", "utc_offset_s", "version" FROM "turn" WHERE scope_id = ?1 AND rolled_back_at IS NULL ORDER BY turn_number DESC LIMIT ?2;

-- turn.of_closed_scopes
--   takes: created_until
--   gives: ordinal, turn_id, trajectory_id, scope_id, sequence, turn_number, role, trust, content, token_count, created_at, occurred_at, name, tool_calls, tool_call_id, thinking, is_error, model_id, idempotency_key, rolled_back_at, raw_form, author_id, utc_offset_s, version
SELECT "ordinal", "turn_id", "trajectory_id", "scope_id", "sequence", "turn_number", "role", "trust", "content", "token_count", "created_at", "occurred_at", "name", "tool_calls", "tool_call_id", "thinking", "is_error", "model_id", "idempotency_key", "rolled_back_at", "raw_form", "author_id", "utc_offset_s", "version" FROM "turn" WHERE created_at <= ?1 AND scope_id IN (SELECT scope_id FROM "scope" WHERE closed_at IS NOT NULL) ORDER BY ordinal;

-- turn.outline
--   takes: scope_id, turn_number
--   gives: turn_number, is_result, calls
SELECT turn_number, CAST(role = 'tool' AS INTEGER), CAST(CAST(tool_calls AS TEXT) <> '[]' AS INTEGER) FROM "turn" WHERE scope_id = ?1 AND turn_number >= ?2 AND rolled_back_at IS NULL ORDER BY turn_number;

-- turn_summary.hold_scope
--   takes: trajectory_id, scope_id
--   gives: scope_id
SELECT scope_id FROM scope WHERE trajectory_id = ?1 AND scope_id = ?2 AND closed_at IS NULL;

-- turn_summary.overlapping
--   takes: scope_id, first_turn, last_turn
--   gives: ordinal, turn_summary_id, trajectory_id, scope_id, first_turn, last_turn, content, token_count, trust, source_turns, model_id, created_at, version
SELECT "ordinal", "turn_summary_id", "trajectory_id", "scope_id", "first_turn", "last_turn", "content", "token_count", "trust", "source_turns", "model_id", "created_at", "version" FROM "turn_summary" WHERE scope_id = ?1 AND first_turn <= ?3 AND last_turn >= ?2 ORDER BY first_turn;

-- turn_summary.ranges
--   takes: scope_id
--   gives: first_turn, last_turn, source_turns
SELECT first_turn, last_turn, length(source_turns) / 16 FROM turn_summary WHERE scope_id = ?1 ORDER BY first_turn;

-- usage.bump
--   takes: usage_id, owner_type, owner_id, used_by, count, now
--   gives: ordinal, usage_id, owner_type, owner_id, used_by, access_count, last_accessed_at, version
INSERT INTO "usage" AS known (usage_id, owner_type, owner_id, used_by, access_count, last_accessed_at, version) VALUES (?1, ?2, ?3, ?4, ?5, ?6, 1) ON CONFLICT (usage_id) DO UPDATE SET access_count = known.access_count + excluded.access_count, last_accessed_at = CASE WHEN excluded.last_accessed_at > known.last_accessed_at THEN excluded.last_accessed_at ELSE known.last_accessed_at END, version = known.version + 1 RETURNING "ordinal", "usage_id", "owner_type", "owner_id", "used_by", "access_count", "last_accessed_at", "version";

-- window.prune
--   takes: now, older_than
DELETE FROM "context_window" WHERE expires_at <= ?1 OR assembled_at < ?2;

-- workspace_value.by_prefix
--   takes: prefix
--   gives: ordinal, value_id, key, value, created_at, updated_at, updated_by, deleted_at, version
SELECT "ordinal", "value_id", "key", "value", "created_at", "updated_at", "updated_by", "deleted_at", "version" FROM "workspace_value" WHERE substr(key, 1, length(?1)) = ?1;
