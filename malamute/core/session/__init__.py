"""Sessions of clients: numbers, confirmations, answers, refusals, selectors, outcomes of changes."""
