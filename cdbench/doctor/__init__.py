"""``cdbench doctor``: is a model served here as it computes by itself?

``work`` chooses the requests, ``serving`` runs them alone and in company, ``comparison`` finds the
first difference of two services, ``whole`` is the model's own forward over a whole sequence,
``stages`` looks at the model without an engine. ``checks`` are the invariants and ``exits`` those
of the exit rules, over ``services`` that are run once; ``invariant`` turns what they find into a
verdict. ``dtypes`` measures what rounding changes.
``document`` is the contract of ``--json``, ``examination`` runs it all and ``report`` prints it.
"""
