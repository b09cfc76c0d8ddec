"""For the tests of plugins: ``fixtures`` for pytest, and ``suites`` to inherit. Needs ``primus-core[testing]``."""
