"""Rules shared by broker and gateway: senders, waits after wrong proofs, and shares."""
