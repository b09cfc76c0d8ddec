"""What this plugin contributes. Imports neither torch nor the engine."""
