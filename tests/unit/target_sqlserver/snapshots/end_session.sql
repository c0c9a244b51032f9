SET NOCOUNT ON;
DECLARE @login_time nvarchar(40) = ?, @context varbinary(128) = ?, @program nvarchar(128) = ?;
IF NOT EXISTS (SELECT 1 FROM sys.dm_exec_sessions AS s
                WHERE s.session_id = 57
                  AND CONVERT(nvarchar(40), s.login_time, 126) = @login_time
                  AND s.context_info = @context AND s.program_name = @program)
  THROW 51030, 'dpone.recovery.session_changed', 1;
EXEC (N'KILL 57;');
