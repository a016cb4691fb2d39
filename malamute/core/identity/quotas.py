"""Quotas in use: the usage of each user and each group.

A session counts for its user and for the groups of that user (`Session.quotas`), and so do its sources, the
queues that it made, and its queued messages, until they are gone. All of these together are within each of
the quotas, or a command is refused with 430. Without quotas `Session.quotas` is empty, and a command looks at
nothing else.

A rate is a token bucket of one second. A command takes its messages and its bytes at once, or is refused with
the time after which it would not be. A command over one second's amount takes a full bucket, and the next
ones wait until it is filled again.

Things older than a quota, or from before a restart, count for nobody, except sessions, whose user is stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import ceil

from malamute.access.policy import Policy
from malamute.access.quota import HELD, NO_QUOTAS, RATES, UNLIMITED, Owner, Quota
from malamute.errors import QuotaExceeded

EARLY_SECONDS = 1e-6
"""Seconds that a command may be too early: more than the rounding of times of day."""

IDLE_OWNERS = 1_000
"""So many more users that have nothing any more are remembered for their buckets until those are forgotten
that are full."""


class TokenBucket:
    """Lets through `rate` a second, and as much at once."""

    __slots__ = ("_at", "_level", "rate")

    def __init__(self, rate: int, now: float) -> None:
        self.rate = rate
        self._level: float = rate
        self._at = now

    def level(self, now: float) -> float:
        """How much is in it; less than nothing after a command that was more than it holds."""
        return min(self.rate, self._level + (now - self._at) * self.rate)

    def wait_seconds(self, amount: int, now: float) -> float:
        """How long until so much may pass, or until it is full if that is more than it holds."""
        rate = self.rate
        level = self._level + (now - self._at) * rate
        if amount <= level:
            return 0.0
        seconds = (min(amount, rate) - min(level, rate)) / rate
        return seconds if seconds > EARLY_SECONDS else 0.0

    def consume(self, amount: int, now: float) -> None:
        """So much passes."""
        level = self._level + (now - self._at) * self.rate
        self._level = (level if level < self.rate else self.rate) - amount
        self._at = now

    def set_rate(self, rate: int, now: float) -> None:
        """Change the rate. The content stays, as far as it has room."""
        self._level, self._at, self.rate = min(self.level(now), rate), now, rate


class QuotaUsage:
    """The usage of a user's or group's quota. `refused` counts refusals, by the name of the limit."""

    __slots__ = ("_limits", "buckets", "owner", "quota", "rates", "refused", "used")

    def __init__(self, owner: Owner, quota: Quota, now: float) -> None:
        self.owner = owner
        self.used = dict.fromkeys(HELD, 0)
        self.buckets: dict[str, TokenBucket] = {}
        self.refused: Counter[str] = Counter()
        self.configure(quota, now)

    def configure(self, quota: Quota, now: float) -> None:
        """Change the quota. Present usage stays."""
        self.quota = quota
        given = {name: most for name, most in quota._asdict().items() if most is not None}
        self._limits = {name: most for name, most in given.items() if name in self.used}
        before, self.buckets = self.buckets, {}
        for name in RATES:
            if name in given:
                bucket = self.buckets[name] = before.get(name) or TokenBucket(given[name], now)
                bucket.set_rate(given[name], now)
        self.rates = [(place, self.buckets[name]) for place, name in enumerate(RATES) if name in given]
        """Each bucket with the place of its amount among `RATES`."""

    def add(self, name: str, count: int) -> None:
        """Add to the usage, or subtract if negative."""
        self.used[name] += count
        assert self.used[name] >= 0, f"less than nothing of {name} is used by {' '.join(self.owner)}"

    def check(self, name: str, count: int) -> None:
        """Raise `QuotaExceeded` unless it may have so many more."""
        most = self._limits.get(name)
        if most is not None and count > 0 and self.used[name] + count > most:
            raise self.exceeded(name, f"{self.used[name]} used, and {count} more; expected at most {most}")

    def exceeded(self, name: str, words: str, retry_after: float = 0.0) -> QuotaExceeded:
        """Count a refusal. `words` say how much it would be; `retry_after` is in seconds."""
        self.refused[name] += 1
        kind, owner = self.owner
        who = f"{kind} {owner!r}" if owner else "clients without a user's name"
        return QuotaExceeded(f"quota of {who} is used up: {name}: {words}", retry_after, self.owner, name)

    def used_of(self, name: str, now: float) -> int:
        """Return the usage of a limit; of a rate, the used part of one second's amount."""
        if (bucket := self.buckets.get(name)) is not None:
            return min(bucket.rate, ceil(bucket.rate - bucket.level(now)))
        return self.used.get(name, 0)

    def is_idle(self, now: float) -> bool:
        """Whether nothing would be different if it was forgotten."""
        full = all(bucket.level(now) >= bucket.rate for bucket in self.buckets.values())
        return full and not any(self.used.values())


QuotaUsages = tuple[QuotaUsage, ...]
"""The quotas that sessions are under; none if there are no quotas."""


def check_all(usages: QuotaUsages, name: str, count: int) -> None:
    """Raise `QuotaExceeded` unless each may have so many more."""
    for usage in usages:
        usage.check(name, count)


def add_all(usages: QuotaUsages, name: str, count: int) -> None:
    """Each has so many more, or less if negative."""
    for usage in usages:
        usage.add(name, count)


def check_rates(usages: QuotaUsages, amounts: Sequence[int], now: float) -> None:
    """Check messages and their bytes: one amount for each of the `RATES`.

    Raises:
        QuotaExceeded: they are too early for one of the rates; names the rate with the longest wait.
    """
    longest, found = 0.0, None
    for usage in usages:
        for place, bucket in usage.rates:
            if (seconds := bucket.wait_seconds(amounts[place], now)) > longest:
                longest, found = seconds, (usage, place, bucket)
    if found is not None:
        usage, place, bucket = found
        milliseconds = ceil(longest * 1000)
        words = f"{amounts[place]} more; expected at most {bucket.rate}; retry after {milliseconds} ms"
        raise usage.exceeded(RATES[place], words, milliseconds / 1000)


def consume_rates(usages: QuotaUsages, amounts: Sequence[int], now: float) -> None:
    """So many messages and bytes were accepted."""
    for usage in usages:
        for place, bucket in usage.rates:
            bucket.consume(amounts[place], now)


class QuotaTable:
    """All that is used of quotas, by their owners."""

    def __init__(self, policy: Policy, groups_of: Callable[[str], Iterable[str]]) -> None:
        """`groups_of` tells the groups of a user by the account."""
        self._policy = policy
        self._groups_of = groups_of
        self._usages: dict[Owner, QuotaUsage] = {}
        self._owners_max = IDLE_OWNERS
        self.refused = 0
        """How often one of them had something refused."""

    @property
    def in_force(self) -> bool:
        """Whether anybody has a quota. Most brokers have none."""
        return self._policy.quotas != NO_QUOTAS

    def of(self, user: str, groups: Iterable[str], now: float) -> QuotaUsages:
        """Return the usage of all quotas that sessions are under."""
        owners = self._owners_of(user, groups) if self.in_force else ()
        if not owners:
            return ()
        if len(self._usages) >= self._owners_max:
            kept = {owner: usage for owner, usage in self._usages.items() if not usage.is_idle(now)}
            self._usages, self._owners_max = kept, 2 * len(kept) + IDLE_OWNERS
        return tuple([self._usage(owner, now) for owner in owners])

    def _usage(self, owner: Owner, now: float) -> QuotaUsage:
        usage = self._usages[owner] = self.usage_of(owner, now)
        return usage

    def configure(self, policy: Policy) -> None:
        """Go by other quotas from now on. Each counts when it is asked for next, `of` a session's user."""
        self._policy = policy

    def owners(self, user: str = "") -> Iterable[Owner]:
        """Yield users and groups with a quota that are known or named; or one user and the user's groups."""
        if user:
            return self._owners_of(user, ())
        quotas = self._policy.quotas
        return [one for one in {*self._usages, *quotas.named} if quotas.of(one) != UNLIMITED]

    def _owners_of(self, user: str, groups: Iterable[str]) -> list[Owner]:
        return self._policy.quota_owners(user, {*groups, *self._groups_of(user)})

    def usage_of(self, owner: Owner, now: float) -> QuotaUsage:
        """Return the usage of a quota."""
        usage, quota = self._usages.get(owner), self._policy.quotas.of(owner)
        if usage is None:
            usage = QuotaUsage(owner, quota, now)
        elif usage.quota != quota:
            usage.configure(quota, now)
        return usage
