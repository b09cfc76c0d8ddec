pytest_plugins = ["primus_core.testing.fixtures"]
