"""Models that the engine lacks."""
