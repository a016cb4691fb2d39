"""The edge for asyncio programs. `malamute.aio` has its public names."""
