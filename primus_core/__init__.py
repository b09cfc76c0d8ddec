"""primus-core: train large models with any engine from one command line and one configuration language."""
