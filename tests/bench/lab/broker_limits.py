"""Options of brokers that are measured with more than the default limits allow."""

from malamute.config.derived import MEMORY_BYTES
from malamute.protocol.limits import Limits


def memory_for(limit: str, least: int) -> str:
    """Return the setting of `limits.memory`, not below its default, for at least so much of a limit."""
    return f"limits.memory={max(MEMORY_BYTES, -(-least * MEMORY_BYTES // getattr(Limits(), limit)))}"
