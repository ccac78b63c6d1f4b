"""A small retriever: PostgreSQL finds the candidates, maxsim-serve behind it puts them in order."""
