"""The tests; a package, so that ``tests.fakes`` is this one whatever else is installed."""
