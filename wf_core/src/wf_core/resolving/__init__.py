"""From a request to a plan or a refusal. Pure: nothing is imported, loaded or changed."""
