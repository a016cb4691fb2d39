"""A change of the configuration: the edge reads and checks it, and the core applies it.

New settings of single queues and streams hold for existing ones as well. There may be very many, so each
iteration updates some of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from malamute.core.admin.changes import reloaded
from malamute.core.iteration.effects import LoadConfiguration
from malamute.core.iteration.workflow import GO_ON, Workflow, run_workflow
from malamute.core.reports.audit import BY_SIGNAL, DONE, REFUSED
from malamute.errors import MalamuteError

if TYPE_CHECKING:
    from malamute.core.engines import Engines
    from malamute.core.iteration.effects import Effects
    from malamute.core.iteration.settings import ConfigurationInForce, ConfigurationLoaded, Settings
    from malamute.core.queue.mailbox import Mailboxes
    from malamute.core.queue.service import Services
    from malamute.core.reports.audit import Audit
    from malamute.core.stream.table import Streams

CONFIGURED = "the configuration was loaded"

CONFIGURE_WORK = 10
"""The work of applying another policy to a stream or a queue."""


def reload(effects: Effects, audit: Audit) -> None:
    """Have the configuration read again, and go by it if it is good."""
    record = partial(audit.record, BY_SIGNAL, "broker.reload", {})
    effects.ask(
        LoadConfiguration(),
        lambda loaded: record(DONE, after=reloaded(loaded)),
        lambda error: record(REFUSED, error=error),
    )


def loaded(core: Engines, result: ConfigurationLoaded | MalamuteError) -> None:
    """The configuration was read: go by it, or report why it is refused."""
    effects, in_force = core.effects, core.configuration
    if isinstance(result, MalamuteError):
        in_force.error = str(result)
        effects.notice("the configuration is refused", error=str(result), code=result.code)
        return
    configure(core, result.settings)
    in_force.error = ""
    in_force.loaded_at, in_force.waiting = effects.now, result.waiting
    changed, waiting = list(result.changed), list(result.waiting)
    effects.notice(CONFIGURED, changed=changed, waiting_for_restart=waiting)
    effects.event("broker.configured", changed=" ".join(changed), waiting=" ".join(waiting))


def configure(core: Engines, settings: Settings) -> None:
    """Go by other settings from now on."""
    core.configuration.settings, limits = settings, settings.limits
    core.streams.configure(settings.streams, limits)
    core.queue_limits.configure(settings.queues, limits)
    core.buckets.configure(settings.buckets, limits)
    core.sessions.limits = core.sessions.confirmations.limits = core.feeds.limits = core.selectors.limits = (
        limits
    )
    accounts, rules = core.accounts.configure(settings.accounts), core.access.configure(settings.access)
    if accounts or rules:
        core.quotas.configure(settings.access)
        core.streams.held.configure()
        core.streams.cursors.held.configure()
        core.buckets.usage.configure()
        core.review.begin()
    looks = core.review.each_look() if core.effects.reviewing else iter(())
    each = chain(
        looks,
        _each_queue(core.mailboxes, core.services, core.effects),
        _each_stream(core.streams, core.effects),
    )
    run_workflow(core.effects, _configure_all(core.effects, core.configuration, each))


def _configure_all(
    effects: Effects, in_force: ConfigurationInForce, each: Iterator[Callable[[], None]]
) -> Workflow:
    """Apply the settings to all streams and queues, some in each iteration.

    An active session is reviewed before its turn (`Session.review`). Newer settings begin with all streams
    and queues again, so this ends there.
    """
    settings = in_force.settings
    for configure_one in each:
        configure_one()
        if effects.work <= 0:
            yield GO_ON
            if in_force.settings is not settings:
                return


def _each_queue(mailboxes: Mailboxes, services: Services, effects: Effects) -> Iterator[Callable[[], None]]:
    for table in (mailboxes, services):
        for queue in [*table.by_name.values()]:
            effects.work -= CONFIGURE_WORK
            yield partial(table.configure, queue)


def _each_stream(streams: Streams, effects: Effects) -> Iterator[Callable[[], None]]:
    for stream in [*streams.by_name.values()]:
        # One that was deleted meanwhile is not to be stored again.
        if streams.by_name.get(stream.name) is stream:
            effects.work -= CONFIGURE_WORK
            yield partial(stream.configure, streams.policy(stream.name))
