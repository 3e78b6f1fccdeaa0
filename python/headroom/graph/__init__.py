"""The joint graph of a step as storages and calls: what is captured, what may rerun, and what is rewritten."""
