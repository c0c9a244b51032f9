IF @@TRANCOUNT <> 0 OR (@@OPTIONS & 2) <> 0 THROW 51001, 'dpone.publish.transaction_open', 1;
SET NOCOUNT ON; SET XACT_ABORT ON; SET ROWCOUNT 0; SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SET LOCK_TIMEOUT 600000;
DECLARE
  @operation_id binary(32) = ?,
  @target_key binary(32) = ?,
  @delivery_key binary(32) = ?,
  @generation int = ?,
  @invocation_key binary(32) = ?,
  @route_scope binary(32) = ?,
  @journal_id uniqueidentifier = ?,
  @receipt_kind varchar(16) = ?,
  @intent_version int = ?,
  @intent_sha256 binary(32) = ?,
  @strategy varchar(32) = ?,
  @window_key varchar(64) = ?,
  @row_count bigint = ?,
  @digest_algorithm varchar(64) = ?,
  @digest binary(32) = ?,
  @wire_layout_sha256 binary(32) = ?,
  @fence bigint = ?,
  @lock_mode varchar(32) = ?,
  @receipt_sha256 binary(32) = ?,
  @resource nvarchar(255) = ?,
  @lock_ms int = ?,
  @oid int = ?,
  @created char(23) = ?,
  @created_stamp binary(8) = ?,
  @prepared_oid int = ?,
  @prepared_created char(23) = ?,
  @mark nvarchar(400) = ?,
  @l0 decimal(38,0) = ?,
  @l1 decimal(38,0) = ?,
  @l2 decimal(38,0) = ?,
  @l3 decimal(38,0) = ?,
  @l4 decimal(38,0) = ?,
  @l5 decimal(38,0) = ?,
  @l6 decimal(38,0) = ?,
  @l7 decimal(38,0) = ?,
  @rehearsal bit = ?,
  @fork uniqueidentifier = CONVERT(uniqueidentifier, NULLIF(?, N''));
DECLARE @committed bit = 0, @early bit = 0, @err int, @why int, @rc int, @tx bigint;
IF @operation_id IS NULL OR @target_key IS NULL OR @delivery_key IS NULL OR @generation IS NULL OR @invocation_key IS NULL OR @route_scope IS NULL OR @journal_id IS NULL OR @receipt_kind IS NULL OR @intent_version IS NULL OR @intent_sha256 IS NULL OR @strategy IS NULL OR @window_key IS NULL OR @row_count IS NULL OR @digest_algorithm IS NULL OR @digest IS NULL OR @wire_layout_sha256 IS NULL OR @fence IS NULL OR @lock_mode IS NULL OR @receipt_sha256 IS NULL OR @resource IS NULL OR @lock_ms IS NULL OR @oid IS NULL OR @created IS NULL OR @created_stamp IS NULL OR @prepared_oid IS NULL OR @prepared_created IS NULL OR @mark IS NULL OR @l0 IS NULL OR @l1 IS NULL OR @l2 IS NULL OR @l3 IS NULL OR @l4 IS NULL OR @l5 IS NULL OR @l6 IS NULL OR @l7 IS NULL OR @rehearsal IS NULL
  THROW 51002, 'dpone.publish.parameter_missing', 1;
DECLARE @n bigint, @deleted bigint, @x int, @found int = 0;
BEGIN TRY
  BEGIN TRANSACTION;
  SET @tx = CURRENT_TRANSACTION_ID();
  IF @rehearsal = 1
  BEGIN
    ROLLBACK TRANSACTION;
    SELECT 'compiled' AS outcome, CAST(NULL AS int) AS error_number;
    RETURN;
  END;
  EXEC @rc = sys.sp_getapplock @Resource = @resource, @LockMode = 'Exclusive', @LockOwner = 'Transaction',
       @LockTimeout = @lock_ms, @DbPrincipal = N'public';
  IF @rc IS NULL OR @rc < 0 THROW 51010, 'dpone.publish.target_busy', 1;
  UPDATE [dpone].[target_gate] WITH (ROWLOCK, UPDLOCK, HOLDLOCK) SET fence = @fence, in_flight_operation_id = @operation_id
   WHERE target_key = @target_key AND target_object_id = @oid AND target_created = @created_stamp
     AND journal_id = @journal_id AND route_scope = @route_scope AND fence < @fence AND in_flight_operation_id IS NULL;
  IF ROWCOUNT_BIG() <> 1
  BEGIN
    SET @why = 51024;
    SELECT @why = CASE WHEN target_object_id <> @oid OR target_created <> @created_stamp
                         OR journal_id <> @journal_id OR route_scope <> @route_scope THEN 51022
                       WHEN fence >= @fence THEN 51011 ELSE 51023 END
      FROM [dpone].[target_gate] WITH (UPDLOCK, HOLDLOCK) WHERE target_key = @target_key;
    IF @why = 51024 THROW 51024, 'dpone.publish.gate_missing', 1;
    IF @why = 51022 THROW 51022, 'dpone.publish.gate_governed_by_other', 1;
    IF @why = 51023 THROW 51023, 'dpone.publish.in_flight_committed', 1;
    THROW 51011, 'dpone.publish.fenced', 1;
  END;
  SELECT @found = CASE WHEN intent_version = @intent_version AND intent_sha256 = @intent_sha256
                        AND EXISTS (SELECT 1 FROM sys.objects AS o WHERE o.object_id = OBJECT_ID(N'[shop].[orders]', N'U')
                       AND o.object_id = @oid AND CONVERT(char(23), o.create_date, 121) = @created) THEN 1 ELSE 2 END
    FROM [dpone].[delivery_receipt] WITH (UPDLOCK, HOLDLOCK) WHERE operation_id = @operation_id;
  IF @found = 2 THROW 51025, 'dpone.publish.receipt_differs', 1;
  IF @found = 1
  BEGIN
    ROLLBACK TRANSACTION;
    SELECT 'already' AS outcome, CAST(NULL AS int) AS error_number;
    RETURN;
  END;
  IF EXISTS (SELECT 1 FROM [dpone].[target_gate] WITH (UPDLOCK, HOLDLOCK)
              WHERE target_key = @target_key AND last_operation_id = @operation_id)
    THROW 51017, 'dpone.publish.receipt_removed', 1;
  IF EXISTS (SELECT 1 FROM [dpone].[delivery_receipt] WITH (UPDLOCK, HOLDLOCK)
              WHERE delivery_key = @delivery_key AND generation = @generation)
    THROW 51025, 'dpone.publish.receipt_differs', 1;
  SELECT TOP (1) @x = 1 FROM [dpone_stage].[p_0001] WITH (TABLOCKX, HOLDLOCK);
  IF NOT EXISTS (SELECT 1 FROM sys.objects AS o INNER JOIN sys.extended_properties AS e
                    ON e.class = 1 AND e.major_id = o.object_id AND e.minor_id = 0
                 WHERE o.object_id = OBJECT_ID(N'[dpone_stage].[p_0001]', N'U') AND o.object_id = @prepared_oid
                   AND CONVERT(char(23), o.create_date, 121) = @prepared_created
                   AND e.name = N'dpone.owner'
                   AND CAST(e.value AS nvarchar(400)) COLLATE Latin1_General_BIN2
                     = @mark COLLATE Latin1_General_BIN2)
    THROW 51012, 'dpone.publish.prepared_identity', 1;
  SELECT TOP (@row_count + 1) CAST(HASHBYTES('SHA2_256', (CAST(0x AS varbinary(max)) + ((CAST((SUBSTRING(CAST(s.[id] AS binary(8)), 8, 1) + SUBSTRING(CAST(s.[id] AS binary(8)), 7, 1) + SUBSTRING(CAST(s.[id] AS binary(8)), 6, 1) + SUBSTRING(CAST(s.[id] AS binary(8)), 5, 1) + SUBSTRING(CAST(s.[id] AS binary(8)), 4, 1) + SUBSTRING(CAST(s.[id] AS binary(8)), 3, 1) + SUBSTRING(CAST(s.[id] AS binary(8)), 2, 1) + SUBSTRING(CAST(s.[id] AS binary(8)), 1, 1)) AS varbinary(8)) + CASE WHEN s.[name] IS NULL THEN CAST(0xFFFF AS varbinary(8000)) ELSE (SUBSTRING(CAST(CAST(DATALENGTH(s.[name]) AS smallint) AS binary(2)), 2, 1) + SUBSTRING(CAST(CAST(DATALENGTH(s.[name]) AS smallint) AS binary(2)), 1, 1)) + CAST(s.[name] AS varbinary(8000)) END) + (CASE WHEN s.[amount] IS NULL THEN CAST(0xFF AS varbinary(20)) ELSE CAST(0x131202 + CASE WHEN s.[amount] < CAST(0 AS decimal(18,2)) THEN 0x00 ELSE 0x01 END + CAST(SUBSTRING(CAST(s.[amount] AS varbinary(20)), 5, 16) AS binary(16)) AS varbinary(20)) END + CASE WHEN s.[ts] IS NULL THEN CAST(0xFF AS varbinary(9)) ELSE CAST(0x08 + SUBSTRING(CAST(CAST(s.[ts] AS datetime2(7)) AS binary(9)), 2, 8) AS varbinary(9)) END)))) AS binary(32)) AS h
  INTO #h FROM [dpone_stage].[p_0001] AS s WITH (TABLOCKX, HOLDLOCK);
  IF EXISTS (SELECT @row_count, @row_count, @l0, @l1, @l2, @l3, @l4, @l5, @l6, @l7 EXCEPT
             SELECT COUNT_BIG(*), COUNT_BIG(h), COALESCE(SUM(CAST(CAST(SUBSTRING(h, 1, 4) AS bigint) AS decimal(38,0))), 0), COALESCE(SUM(CAST(CAST(SUBSTRING(h, 5, 4) AS bigint) AS decimal(38,0))), 0), COALESCE(SUM(CAST(CAST(SUBSTRING(h, 9, 4) AS bigint) AS decimal(38,0))), 0), COALESCE(SUM(CAST(CAST(SUBSTRING(h, 13, 4) AS bigint) AS decimal(38,0))), 0), COALESCE(SUM(CAST(CAST(SUBSTRING(h, 17, 4) AS bigint) AS decimal(38,0))), 0), COALESCE(SUM(CAST(CAST(SUBSTRING(h, 21, 4) AS bigint) AS decimal(38,0))), 0), COALESCE(SUM(CAST(CAST(SUBSTRING(h, 25, 4) AS bigint) AS decimal(38,0))), 0), COALESCE(SUM(CAST(CAST(SUBSTRING(h, 29, 4) AS bigint) AS decimal(38,0))), 0) FROM #h)
    THROW 51013, 'dpone.publish.digest', 1;
  DROP TABLE #h;
  DELETE FROM [shop].[orders] WITH (TABLOCKX, HOLDLOCK);
  SET @deleted = ROWCOUNT_BIG();
  IF CURRENT_TRANSACTION_ID() <> @tx OR @@TRANCOUNT <> 1 OR XACT_STATE() <> 1
    THROW 51020, 'dpone.publish.transaction_changed', 1;
  IF NOT EXISTS (SELECT 1 FROM sys.objects AS o WHERE o.object_id = OBJECT_ID(N'[shop].[orders]', N'U')
                       AND o.object_id = @oid AND CONVERT(char(23), o.create_date, 121) = @created)
     OR (SELECT COUNT_BIG(*) FROM sys.columns AS c WHERE c.object_id = @oid) <> 4
     OR EXISTS (SELECT c.column_id, c.name COLLATE Latin1_General_BIN2, c.user_type_id,
                       CAST(c.max_length AS int), CAST(c.precision AS int), CAST(c.scale AS int),
                       CAST(c.is_nullable AS int), c.collation_name COLLATE Latin1_General_BIN2
                  FROM sys.columns AS c WHERE c.object_id = @oid
                EXCEPT
                SELECT p.i, p.n COLLATE Latin1_General_BIN2, p.t, p.l, p.pr, p.sc, p.nullable,
                       p.col COLLATE Latin1_General_BIN2
                  FROM (VALUES (1, N'id', 127, 8, 19, 0, 0, CAST(NULL AS nvarchar(128))),
                               (2, N'name', 231, 40, 0, 0, 1, CAST(N'Latin1_General_CI_AS' AS nvarchar(128))),
                               (3, N'amount', 106, 9, 18, 2, 1, CAST(NULL AS nvarchar(128))),
                               (4, N'ts', 42, 7, 23, 3, 1, CAST(NULL AS nvarchar(128)))) AS p(i, n, t, l, pr, sc, nullable, col))
    THROW 51014, 'dpone.publish.target_changed', 1;
  IF EXISTS (SELECT 1 FROM sys.triggers AS g WHERE g.parent_id = @oid AND g.is_disabled = 0)
    THROW 51026, 'dpone.target.trigger', 1;
  INSERT INTO [shop].[orders] ([id], [name], [amount], [ts])
  SELECT [id], [name], [amount], [ts] FROM [dpone_stage].[p_0001];
  SET @n = ROWCOUNT_BIG();
  IF CURRENT_TRANSACTION_ID() <> @tx OR @@TRANCOUNT <> 1 OR XACT_STATE() <> 1
    THROW 51020, 'dpone.publish.transaction_changed', 1;
  IF @n <> @row_count OR (SELECT COUNT_BIG(*) FROM [shop].[orders]) <> @row_count
    THROW 51015, 'dpone.publish.after_image', 1;
  INSERT INTO [dpone].[delivery_receipt]
    (operation_id, target_key, delivery_key, generation, invocation_key, route_scope, journal_id, receipt_kind, intent_version, intent_sha256, strategy, window_key, row_count, digest_algorithm, digest, wire_layout_sha256, fence, lock_mode, receipt_sha256,
     deleted_rows, published_at, recovery_fork_id, durability, transaction_id, session_id)
  VALUES
    (@operation_id, @target_key, @delivery_key, @generation, @invocation_key, @route_scope, @journal_id, @receipt_kind, @intent_version, @intent_sha256, @strategy, @window_key, @row_count, @digest_algorithm, @digest, @wire_layout_sha256, @fence, @lock_mode, @receipt_sha256,
     @deleted, SYSUTCDATETIME(), @fork, 'full', @tx, @@SPID);
  IF ROWCOUNT_BIG() <> 1 THROW 51018, 'dpone.publish.receipt_not_written', 1;
  UPDATE [dpone].[target_gate]
     SET in_flight_operation_id = NULL, last_operation_id = @operation_id,
         last_intent_sha256 = @intent_sha256, last_receipt_sha256 = @receipt_sha256
   WHERE target_key = @target_key AND fence = @fence AND in_flight_operation_id = @operation_id;
  IF ROWCOUNT_BIG() <> 1 THROW 51019, 'dpone.publish.gate_changed', 1;
  IF CURRENT_TRANSACTION_ID() <> @tx OR @@TRANCOUNT <> 1 OR XACT_STATE() <> 1
    THROW 51020, 'dpone.publish.transaction_changed', 1;
  COMMIT TRANSACTION WITH (DELAYED_DURABILITY = OFF);
  SET @committed = 1;
END TRY
BEGIN CATCH
  SET @err = ERROR_NUMBER();
  IF @committed = 1 OR (@tx IS NOT NULL AND (XACT_STATE() = 0 OR CURRENT_TRANSACTION_ID() <> @tx))
    SET @early = 1;
  IF XACT_STATE() <> 0 ROLLBACK TRANSACTION;
  SELECT CASE WHEN @early = 1 THEN 'ended_early' ELSE 'rolled_back' END AS outcome, @err AS error_number;
  RETURN;
END CATCH;
SELECT CASE WHEN @committed = 1 AND @@TRANCOUNT = 0 THEN 'committed' ELSE 'ended_early' END AS outcome,
       CAST(NULL AS int) AS error_number;
