"""RestMS over the broker: feeds, joins, pipes and messages as resources, in XML and JSON.

    documents      the documents, in both forms     feed_types     the types and profiles, as tables
    definitions    what is defined, as values       registry       the same, kept in a stream of the broker
    messages       messages as documents            pipes          what is held for the reader of a pipe
    conditions     conditional requests             resources      what is done with resources
    views          resources as documents           endpoints      the paths
    publishing     what is posted to feeds          service        what is asked of the broker
    imported       what the broker has as feeds     teardown       how things are taken away

Decision 46 says how the resources lie on the broker: docs/decisions/0046-restms-on-streams-and-services.md
"""
