"""What an operator asks of a broker (`queries`), and changes in it (`changes`)."""
