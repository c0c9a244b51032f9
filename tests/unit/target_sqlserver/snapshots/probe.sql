IF @@TRANCOUNT <> 0 OR (@@OPTIONS & 2) <> 0 THROW 51001, 'dpone.publish.transaction_open', 1;
SET NOCOUNT ON; SET XACT_ABORT ON; SET ROWCOUNT 0; SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SET LOCK_TIMEOUT 600000;
DECLARE
  @operation_id binary(32) = ?,
  @target_key binary(32) = ?,
  @journal_id uniqueidentifier = ?,
  @route_scope binary(32) = ?,
  @fence bigint = ?,
  @resource nvarchar(255) = ?,
  @lock_ms int = ?,
  @oid int = ?,
  @created char(23) = ?,
  @created_stamp binary(8) = ?;
DECLARE @committed bit = 0, @early bit = 0, @err int, @why int, @rc int, @tx bigint;
IF @operation_id IS NULL OR @target_key IS NULL OR @journal_id IS NULL OR @route_scope IS NULL OR @fence IS NULL OR @resource IS NULL OR @lock_ms IS NULL OR @oid IS NULL OR @created IS NULL OR @created_stamp IS NULL
  THROW 51002, 'dpone.publish.parameter_missing', 1;
BEGIN TRY
  BEGIN TRANSACTION;
  SET @tx = CURRENT_TRANSACTION_ID();
  EXEC @rc = sys.sp_getapplock @Resource = @resource, @LockMode = 'Exclusive', @LockOwner = 'Transaction',
       @LockTimeout = @lock_ms, @DbPrincipal = N'public';
  IF @rc IS NULL OR @rc < 0 THROW 51010, 'dpone.publish.target_busy', 1;
  UPDATE [dpone].[target_gate] WITH (ROWLOCK, UPDLOCK, HOLDLOCK) SET fence = @fence
   WHERE target_key = @target_key AND target_object_id = @oid AND target_created = @created_stamp
     AND journal_id = @journal_id AND route_scope = @route_scope AND fence < @fence;
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
  SELECT operation_id, target_key, delivery_key, generation, invocation_key, route_scope, journal_id, receipt_kind, intent_version, intent_sha256, strategy, window_key, row_count, digest_algorithm, digest, wire_layout_sha256, fence, lock_mode, receipt_sha256, deleted_rows, CONVERT(varchar(26), published_at, 126) AS published_at, recovery_fork_id, durability
    FROM [dpone].[delivery_receipt] WITH (UPDLOCK, HOLDLOCK) WHERE operation_id = @operation_id;
  SELECT last_operation_id, in_flight_operation_id
    FROM [dpone].[target_gate] WITH (UPDLOCK, HOLDLOCK) WHERE target_key = @target_key;
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
SELECT CASE WHEN @committed = 1 AND @@TRANCOUNT = 0 THEN 'probed' ELSE 'ended_early' END AS outcome,
       CAST(NULL AS int) AS error_number;
