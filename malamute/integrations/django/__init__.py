"""Django Tasks on Malamute: a backend, and an app with the command of its workers.

    INSTALLED_APPS = [..., "malamute.integrations.django"]
    TASKS = {
        "default": {
            "BACKEND": "malamute.integrations.django.MalamuteBackend",
            "OPTIONS": {"url": "tcp://127.0.0.1:9999", "retries": [1, 10, 60], "on_commit": True},
        }
    }

`manage.py malamute_worker` runs the tasks. Tasks are those of `django.tasks` from Django 6.0 on, and before
those of the backport `django_tasks`.

"""

from malamute.integrations.django.backend import MalamuteBackend, TaskNotEnqueued

__all__ = ["MalamuteBackend", "TaskNotEnqueued"]
