"""Workers that Celery's tests start as processes know the scheme `malamute://`."""

import malamute.integrations.celery  # noqa: F401
