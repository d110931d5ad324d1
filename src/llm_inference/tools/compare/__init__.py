"""The same workloads on several engines, in turn, on one machine, in one run: `bench compare`.

    contender ─► plan ─► http_target │ library_target ─► timelines ─► measured ─► comparison ─► table, plot
    workloads ───────────────▲                                            roofline ─┘

A contender is a configuration of ours, a server that runs already, or an engine's own library driven by a short script
under the engine's own Python (`scripts/`). Each is started, warmed up, measured and stopped before the next one starts.
"""
