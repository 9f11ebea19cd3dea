"""Tests of agents without a cluster: a gateway in memory, fake model servers, and a pytest plugin.

Nothing here is imported by `dalsegno` itself.
"""
