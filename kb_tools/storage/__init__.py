"""All SQL of the assets and of the indexes that live in PostgreSQL.

Functions take the connection of an open transaction, whose search path is our schema.
"""
