"""These tests need Pydantic AI: hack/adapters.sh runs them in an environment of their own."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("pydantic_ai") else ["test_*"]
