"""Deployment files from one configuration: pure renderers, facts in, `{path: text}` out.

    ServerConfig + ModelNeeds + Choices ─► DeploymentFacts ─► render(target, facts) ─► {path: text} ─► output.write

Nothing here talks to a cluster, a daemon or an engine. The only files that are touched are the templates (read) and
those that `output.py` writes.
"""
