"""Language models in Hugging Face's format: are they what was trained, how good are they, what do they say."""
