"""Holdfast keeps the durable half of an LLM agent in one SQLite file or one PostgreSQL."""
