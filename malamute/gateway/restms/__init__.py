"""RestMS over the broker: feeds, joins, pipes and messages as resources, in XML and JSON.

    documents      the documents, in both forms     feed_types     the types and profiles, as tables
    definitions    definitions as values            registry       the same, kept in a stream of the broker
    messages       messages as documents            pipes          readers of pipes, and their messages
    conditions     conditional requests             resources      requests to resources
    views          resources as documents           endpoints      the paths
    publishing     posts to feeds                   service        changes at the broker
    imported       streams of the broker as feeds   teardown       deletion with dependents

Decision 46 maps the resources to streams and services: docs/decisions/0046-restms-on-streams-and-services.md
"""
