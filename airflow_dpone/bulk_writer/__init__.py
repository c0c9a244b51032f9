"""Bulk load into SQL Server: rows of a sealed chunk into one granted stage, by a process of its own."""
