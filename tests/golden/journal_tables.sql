-- The journal's tables in SQLite, as the migrations leave them.
-- layout_version 1, revisions 0001

CREATE TABLE dpone_alembic_version (
  version_num VARCHAR(32) NOT NULL,
  CONSTRAINT dpone_alembic_version_pkc PRIMARY KEY (version_num)
);

CREATE TABLE dpone_checkpoint (
  target_key VARCHAR(64) NOT NULL,
  route_scope VARCHAR(64) NOT NULL,
  window_key VARCHAR(64) NOT NULL,
  revision BIGINT NOT NULL,
  delivery_key VARCHAR(64) NOT NULL,
  generation BIGINT NOT NULL,
  operation_id VARCHAR(64) NOT NULL,
  receipt_sha256 VARCHAR(64) NOT NULL,
  evidence_sha256 VARCHAR(64) NOT NULL,
  updated_at VARCHAR(27) NOT NULL,
  CONSTRAINT pk_dpone_checkpoint PRIMARY KEY (target_key, route_scope, window_key),
  CONSTRAINT ck_dpone_checkpoint_revision CHECK (revision > 0)
);

CREATE TABLE dpone_custody (
  target_key VARCHAR(64) NOT NULL,
  custody_epoch BIGINT NOT NULL,
  state VARCHAR(8) NOT NULL,
  holder_key VARCHAR(64),
  holder_fence BIGINT,
  release_reason VARCHAR(64),
  since VARCHAR(27) NOT NULL,
  CONSTRAINT pk_dpone_custody PRIMARY KEY (target_key),
  CONSTRAINT fk_dpone_custody_holder_key FOREIGN KEY(holder_key) REFERENCES dpone_invocation (invocation_key),
  CONSTRAINT ck_dpone_custody_epoch CHECK (custody_epoch > 0),
  CONSTRAINT ck_dpone_custody_closed CHECK ((state = 'held' AND holder_key IS NOT NULL AND holder_fence IS NOT NULL AND holder_fence > 0 AND release_reason IS NULL) OR (state = 'clear' AND holder_key IS NULL AND holder_fence IS NULL AND release_reason IS NOT NULL AND release_reason IN ('published_cleanup', 'nonpublication_all_stages_retired', 'empty_completion_cleanup')))
);

CREATE INDEX ix_dpone_custody_state_since ON dpone_custody (state, since);

CREATE TABLE dpone_event (
  stream VARCHAR(80) NOT NULL,
  sequence BIGINT NOT NULL,
  invocation_key VARCHAR(64) NOT NULL,
  event VARCHAR(32) NOT NULL,
  previous_sha256 VARCHAR(64),
  sha256 VARCHAR(64) NOT NULL,
  body TEXT NOT NULL,
  created_at VARCHAR(27) NOT NULL,
  CONSTRAINT pk_dpone_event PRIMARY KEY (stream, sequence),
  CONSTRAINT uq_dpone_event_sha256 UNIQUE (sha256),
  CONSTRAINT fk_dpone_event_invocation_key FOREIGN KEY(invocation_key) REFERENCES dpone_invocation (invocation_key),
  CONSTRAINT ck_dpone_event_sequence CHECK (sequence >= 0),
  CONSTRAINT ck_dpone_event_event CHECK (event IN ('PLANNED', 'EXTRACTED', 'STAGED', 'PREPARED', 'PUBLISHING', 'UNKNOWN', 'PUBLISHED', 'EVIDENCED', 'CHECKPOINTED', 'COMPLETED', 'FAILED', 'RETIRED', 'INCIDENT', 'EPOCH_OPENED', 'CHUNK_SEALED', 'EPOCH_ABANDONED', 'ATTEMPT_ABANDONED', 'PREPARE_INTENT', 'TUNED', 'CUSTODY_RELEASED', 'INTENT', 'STAGE_OWNED', 'GRANTED', 'WRITING', 'WRITER_TERMINAL', 'QUIESCENT', 'VERIFIED', 'PARTIAL_PROVED', 'FAILED_RETIRABLE', 'INCIDENT_RETAINED')),
  CONSTRAINT ck_dpone_event_previous_sha256 CHECK ((sequence = 0) = (previous_sha256 IS NULL))
);

CREATE INDEX ix_dpone_event_created_at ON dpone_event (created_at);

CREATE INDEX ix_dpone_event_invocation_key ON dpone_event (invocation_key);

CREATE TABLE dpone_evidence (
  evidence_sha256 VARCHAR(64) NOT NULL,
  invocation_key VARCHAR(64) NOT NULL,
  operation_id VARCHAR(64) NOT NULL,
  body BLOB NOT NULL,
  created_at VARCHAR(27) NOT NULL,
  CONSTRAINT pk_dpone_evidence PRIMARY KEY (evidence_sha256),
  CONSTRAINT fk_dpone_evidence_invocation_key FOREIGN KEY(invocation_key) REFERENCES dpone_invocation (invocation_key)
);

CREATE INDEX ix_dpone_evidence_invocation_key ON dpone_evidence (invocation_key);

CREATE TABLE dpone_invocation (
  delivery_key VARCHAR(64) NOT NULL,
  generation BIGINT NOT NULL,
  invocation_key VARCHAR(64) NOT NULL,
  target_key VARCHAR(64) NOT NULL,
  route_scope VARCHAR(64) NOT NULL,
  window_key VARCHAR(64) NOT NULL,
  dag_id TEXT NOT NULL,
  run_id TEXT NOT NULL,
  delivery_task_id TEXT NOT NULL,
  map_index INTEGER NOT NULL,
  state VARCHAR(32) NOT NULL,
  resume_state VARCHAR(32),
  plan_sha256 VARCHAR(64) NOT NULL,
  delivery_events BIGINT NOT NULL,
  attempt_events BIGINT NOT NULL,
  last_error_code TEXT,
  reason TEXT,
  next_action TEXT,
  updated_at VARCHAR(27) NOT NULL,
  CONSTRAINT pk_dpone_invocation PRIMARY KEY (delivery_key, generation),
  CONSTRAINT uq_dpone_invocation_invocation_key UNIQUE (invocation_key),
  CONSTRAINT ck_dpone_invocation_generation CHECK (generation > 0),
  CONSTRAINT ck_dpone_invocation_state CHECK (state IN ('PLANNED', 'EXTRACTED', 'STAGED', 'PREPARED', 'PUBLISHING', 'UNKNOWN', 'PUBLISHED', 'EVIDENCED', 'CHECKPOINTED', 'COMPLETED', 'FAILED', 'RETIRED', 'INCIDENT')),
  CONSTRAINT ck_dpone_invocation_resume_state CHECK (resume_state IS NULL OR resume_state IN ('PLANNED', 'EXTRACTED', 'STAGED', 'PREPARED', 'PUBLISHING', 'UNKNOWN', 'PUBLISHED', 'EVIDENCED', 'CHECKPOINTED', 'COMPLETED', 'FAILED', 'RETIRED', 'INCIDENT')),
  CONSTRAINT ck_dpone_invocation_events CHECK (delivery_events >= 0 AND attempt_events >= 0)
);

CREATE INDEX ix_dpone_invocation_dag_id_run_id ON dpone_invocation (dag_id, run_id);

CREATE INDEX ix_dpone_invocation_state_updated_at ON dpone_invocation (state, updated_at);

CREATE INDEX ix_dpone_invocation_target_key_state ON dpone_invocation (target_key, state);

CREATE TABLE dpone_journal (
  only_row INTEGER NOT NULL,
  journal_id VARCHAR(36) NOT NULL,
  layout_version INTEGER NOT NULL,
  host_id TEXT,
  created_at VARCHAR(27) NOT NULL,
  CONSTRAINT pk_dpone_journal PRIMARY KEY (only_row),
  CONSTRAINT ck_dpone_journal_only_row CHECK (only_row = 1)
);

CREATE TABLE dpone_lease (
  target_key VARCHAR(64) NOT NULL,
  owner VARCHAR(64),
  owner_host TEXT,
  owner_pid BIGINT,
  owner_started TEXT,
  delivery_key VARCHAR(64),
  task_id TEXT,
  try_number INTEGER,
  ti_id TEXT,
  fence BIGINT NOT NULL,
  expires_at VARCHAR(27),
  touched_at VARCHAR(27),
  CONSTRAINT pk_dpone_lease PRIMARY KEY (target_key),
  CONSTRAINT ck_dpone_lease_fence CHECK (fence >= 0),
  CONSTRAINT ck_dpone_lease_owner CHECK (owner IS NULL OR (fence > 0 AND expires_at IS NOT NULL))
);

CREATE TABLE dpone_task (
  delivery_key VARCHAR(64) NOT NULL,
  task_id VARCHAR(250) NOT NULL,
  generation BIGINT NOT NULL,
  try_number INTEGER NOT NULL,
  max_tries INTEGER NOT NULL,
  ti_id TEXT NOT NULL,
  CONSTRAINT pk_dpone_task PRIMARY KEY (delivery_key, task_id)
);
