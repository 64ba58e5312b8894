"""The contract: records, errors, limits and the store Protocols. It imports nothing of ours."""
