"""Engines as Ray Serve deployments: replicas on many machines, behind the gateway of this one.

    gateway process                     the Ray cluster
    RayEngine ──DeploymentHandle──►  EngineReplica ── any engine (native, vllm, …)
              ◄──── Fragment, … ───  EngineReplica ── …

Ray chooses the replica, restarts dead ones, scales and updates; everything else is as with a local engine. Only
`application.py`, `deployment.py`, `engine.py` and `replica.py` import ray.
"""
