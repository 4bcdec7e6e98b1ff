"""Pondera beside its peers, on the same model, prompts and machine: `python -m infra.bench.peers`.

Modules that a peer's environment imports (`wire`, `prm`, `*_driver`) use the standard library and that
peer's packages alone.
"""
