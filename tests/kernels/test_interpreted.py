"""Every kernel agrees with its plain-torch reference, in Triton's interpreter."""

import kernel_cases
import pytest
from kernel_cases import Case

QUICK = kernel_cases.quick_cases()
QUICK_NAMES = {str(case) for case in QUICK}
REST = [case for case in kernel_cases.all_cases() if str(case) not in QUICK_NAMES]


@pytest.mark.parametrize("case", QUICK, ids=str)
def test_a_kernel_agrees_with_its_reference(case: Case) -> None:
    case.check("cpu")


@pytest.mark.slow
@pytest.mark.parametrize("case", REST, ids=str)
def test_a_kernel_agrees_with_its_reference_at_every_edge(case: Case) -> None:
    case.check("cpu")
