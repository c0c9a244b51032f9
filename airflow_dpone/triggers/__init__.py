"""Triggers of this provider: they wait in the triggerer, and never inside its event loop."""
