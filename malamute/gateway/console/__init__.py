"""The operators' console: pages at `/` that are made on the server, and work without a network or a build.

A page is a row of a table (`ENDPOINTS` of its module): it asks the broker as the user who is signed in, and
fills a template. Whatever changes something is one of the broker's own changes (`changes`): its dry run is
shown first. `sessions` knows who is signed in, `visits` is one request, `watch` keeps rates, and `site` makes
paths of the gateway of it all.

What a message holds is shown and never run: templates escape, the module of the browser sets text and no
markup, and the policy of content of every page allows no script but the console's own files.
"""
