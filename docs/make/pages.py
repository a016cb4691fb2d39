"""The pages of the site that no file holds: each is made from the code by one function that returns Markdown.

To add a page, add it here and to `nav` in mkdocs.yml.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import administration
import commands
import configuration
import error_table
import limits_table
import python_reference

PAGES = {
    "reference/administration.md": administration.page,
    "reference/commands.md": commands.page,
    "reference/configuration.md": configuration.page,
    "reference/errors.md": error_table.page,
    "reference/limits.md": limits_table.page,
    **python_reference.PAGES,
}
"""Where each page is below docs/, and what makes it."""
