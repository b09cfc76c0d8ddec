"""The engine nano_gpt as a backend of primus."""
