"""Cardcage: a local model server whose every hardware backend and API dialect is a plugin."""
