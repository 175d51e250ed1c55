"""Needs a GPU: ``make gpu`` on a machine that has one. Elsewhere there is nothing to collect."""

import torch

collect_ignore_glob = [] if torch.cuda.is_available() else ["test_*.py"]
