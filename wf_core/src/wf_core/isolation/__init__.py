"""The structural copy, and the proof that base and process are as they were."""
