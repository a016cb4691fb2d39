"""The wire: messages, codec, batches and limits, shared by broker and client. Pure."""
