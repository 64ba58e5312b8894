"""The engines: they run steps on a database, and know nothing of the domain."""
