"""Commands of `manage.py`, each a module."""
