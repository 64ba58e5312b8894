"""The tests of this repository use the plugin it publishes, and pytester to test that plugin."""

pytest_plugins = ["holdfast.testing.plugin", "pytester"]
