"""What a store promises, one test per law: the conformance suite.

It runs unchanged against every store, ours and yours. Write one factory: an async callable that is
given the name of a tenant and returns a new handle (`holdfast.contract.stores.Store`) on one and
the same database each time it is called. Then run one command:

    pytest -p holdfast.testing.plugin --pyargs holdfast.testing.conformance \\
        --holdfast-factory mypkg:factory

Every test is a law: its docstring says what is promised, and `docs/contract.md` is made of these
docstrings. A law is given a `kit` (see `holdfast.testing.conformance.kit`) and nothing else; it
knows the contract and no implementation. Laws that were considered and not adopted are listed with
the reason in `not_adopted.py`.
"""

from holdfast.testing.conformance.not_adopted import ELSEWHERE, NOT_ADOPTED

__all__ = ["ELSEWHERE", "NOT_ADOPTED"]
