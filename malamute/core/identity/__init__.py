"""Users and their rights: rules of access, accounts, groups, quotas, and the holdings of each user."""
