"""A server of a trained model: `jtx.api` over HTTP, with the inputs of many clients in batches."""
