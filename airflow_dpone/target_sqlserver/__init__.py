"""SQL Server as the target: staging, proof inside the server, one publication transaction."""
