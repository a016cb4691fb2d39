"""The queries (`queries`) and changes (`changes`) of operators."""
