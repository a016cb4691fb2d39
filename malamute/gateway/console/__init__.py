"""The operators' console: pages at `/` that are made on the server, without a network or a build.

A page is a row of a table (`ENDPOINTS` of its module): its handler asks the broker as the signed-in user, and
fills a template. Forms use the broker's own changes (`changes`), with a dry run first. `sessions` has the
signed-in browsers, `visits` one request, `watch` the rates; `site` makes paths of the gateway out of them.

Contents of messages are shown and never run: templates escape, scripts set text and no markup, and the
content security policy of every page allows only the console's own files.
"""
