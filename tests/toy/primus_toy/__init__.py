"""A backend without an engine, to test what is around backends."""
