"""`python -m kb_tools.cli` is `kb`."""

from kb_tools.cli import main

main()
