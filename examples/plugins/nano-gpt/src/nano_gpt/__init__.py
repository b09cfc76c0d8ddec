"""A small GPT and the loop that trains it. Knows nothing of primus."""
