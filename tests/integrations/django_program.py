"""The settings of a site of Django, and its tasks' module is `django_program_tasks`."""

import os

SECRET_KEY = "a test"
USE_TZ = True
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
INSTALLED_APPS = ["malamute.integrations.django"]
TASKS = {
    "default": {
        "BACKEND": "malamute.integrations.django.MalamuteBackend",
        "QUEUES": ["default", "slow"],
        "OPTIONS": {
            "url": os.environ.get("DJANGO_TEST_URL", "tcp://127.0.0.1:9999"),
            "connect": {"timeout": 60},
        },
    }
}
