"""Test equipment behind the engine's ports: honest enough to pass the contract suites, scripted enough to
fail on demand, and shared between processes through files."""
