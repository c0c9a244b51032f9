SELECT SUSER_SNAME(),
       CASE WHEN 1 IN (HAS_PERMS_BY_NAME(NULL, NULL, 'VIEW SERVER STATE'),
                       HAS_PERMS_BY_NAME(NULL, NULL, 'VIEW SERVER PERFORMANCE STATE')) THEN 1 ELSE 0 END,
       CASE WHEN HAS_PERMS_BY_NAME(NULL, NULL, 'ALTER ANY CONNECTION') = 1 THEN 1 ELSE 0 END;

SELECT s.session_id, CONVERT(nvarchar(40), s.login_time, 126), s.context_info, s.program_name, s.host_name,
       s.login_name, s.status
  FROM sys.dm_exec_sessions AS s
 WHERE s.program_name = ? AND s.context_info IS NOT NULL ORDER BY s.session_id;
