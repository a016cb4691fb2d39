"""The app, for INSTALLED_APPS."""

from django.apps import AppConfig


class MalamuteConfig(AppConfig):
    """The app of Malamute: it has the command `malamute_worker`."""

    name = "malamute.integrations.django"
    label = "malamute_tasks"
    verbose_name = "Malamute"
