-- Makes this database ready for deliveries. Run it again at will: what is there stays.
SET ANSI_NULLS ON; SET QUOTED_IDENTIFIER ON; SET ANSI_PADDING ON;
GO
IF SCHEMA_ID(N'dpone') IS NULL EXEC (N'CREATE SCHEMA [dpone]');
GO
IF SCHEMA_ID(N'dpone_stage') IS NULL EXEC (N'CREATE SCHEMA [dpone_stage]');
GO
IF OBJECT_ID(N'[dpone].[installation]', N'U') IS NULL
CREATE TABLE [dpone].[installation] (
  only_row bit NOT NULL PRIMARY KEY CHECK (only_row = 1),
  installation_id uniqueidentifier NOT NULL,
  layout_version int NOT NULL,
  created_at datetime2(6) NOT NULL);
GO
IF OBJECT_ID(N'[dpone].[target_gate]', N'U') IS NULL
CREATE TABLE [dpone].[target_gate] (
  target_key binary(32) NOT NULL PRIMARY KEY,
  schema_name nvarchar(128) NOT NULL,
  table_name nvarchar(128) NOT NULL,
  target_object_id int NOT NULL,
  target_created binary(8) NOT NULL,
  journal_id uniqueidentifier NOT NULL,
  route_scope binary(32) NOT NULL,
  fence bigint NOT NULL,
  in_flight_operation_id binary(32) NULL,
  last_operation_id binary(32) NULL,
  last_intent_sha256 binary(32) NULL,
  last_receipt_sha256 binary(32) NULL,
  cycle_id binary(32) NULL,
  cycle_fence bigint NULL,
  frontier_sequence bigint NULL);
GO
IF OBJECT_ID(N'[dpone].[delivery_receipt]', N'U') IS NULL
CREATE TABLE [dpone].[delivery_receipt] (
  operation_id binary(32) NOT NULL PRIMARY KEY,
  target_key binary(32) NOT NULL,
  delivery_key binary(32) NOT NULL,
  generation int NOT NULL,
  invocation_key binary(32) NOT NULL,
  route_scope binary(32) NOT NULL,
  journal_id uniqueidentifier NOT NULL,
  receipt_kind varchar(16) NOT NULL,
  intent_version int NOT NULL,
  intent_sha256 binary(32) NOT NULL,
  strategy varchar(32) NOT NULL,
  window_key varchar(64) NOT NULL,
  row_count bigint NOT NULL,
  digest_algorithm varchar(64) NOT NULL,
  digest binary(32) NOT NULL,
  wire_layout_sha256 binary(32) NOT NULL,
  fence bigint NOT NULL,
  lock_mode varchar(32) NOT NULL,
  receipt_sha256 binary(32) NOT NULL,
  deleted_rows bigint NOT NULL,
  published_at datetime2(6) NOT NULL,
  recovery_fork_id uniqueidentifier NULL,
  durability varchar(16) NOT NULL,
  transaction_id bigint NOT NULL,
  session_id int NOT NULL,
  UNIQUE (delivery_key, generation));
GO
IF NOT EXISTS (SELECT 1 FROM [dpone].[installation] WITH (UPDLOCK, HOLDLOCK))
INSERT INTO [dpone].[installation] (only_row, installation_id, layout_version, created_at)
VALUES (1, NEWID(), 1, SYSUTCDATETIME());
GO
