"""Rules that the doors of broker and gateway share: who is one sender, who has to wait, and shares."""
