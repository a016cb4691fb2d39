"""Settings for Django's own tests of tasks: our app, and our backend unless a test has another one."""

SECRET_KEY = "upstream"
USE_TZ = True
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
INSTALLED_APPS = ["malamute.integrations.django"]
TASKS = {"default": {"BACKEND": "malamute.integrations.django.MalamuteBackend"}}
