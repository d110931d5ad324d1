#!/bin/sh
# What a change of the configuration must pass, in CI and on a desk:  sh ci/check.sh
#
# 1. the configuration is valid
# 2. its deployment files can be made
# 3. kept files are those that it gives: deploy/FORM, where there is one
# 4. the validators that are installed accept them
set -eu
config=config.yaml
rendered=${RENDERED:-$(mktemp -d)}
mkdir -p "$rendered"

# Variables of the configuration that hold secrets elsewhere: their values do not matter here.
for variable in $(grep -v '^ *#' "$config" | grep -o '\${[A-Za-z_][A-Za-z0-9_]*' | tr -d '${' | sort -u); do
  eval "export $variable=\"\${$variable:-only-for-checks}\""
done

echo "== the configuration"
llm-inference config --config "$config" > "$rendered/config.effective.yaml"

for form in docker compose kubernetes helm systemd; do
  echo "== $form"
  # DEPLOY_ARGS: what you say to `llm-inference deploy` yourself, such as --hostname llm.example.org
  # shellcheck disable=SC2086
  llm-inference deploy "$form" "$config" -o "$rendered/$form" ${DEPLOY_ARGS:-}
  if [ -d "deploy/$form" ]; then
    diff -r "deploy/$form" "$rendered/$form" || {
      echo "deploy/$form is not what the configuration gives: llm-inference deploy $form $config -o deploy/$form" >&2
      exit 1
    }
  fi
done

has() { command -v "$1" > /dev/null || { echo "-- $1 is not installed: not checked with it"; false; }; }

echo "== validators"
if [ -d "$rendered/docker" ] && has hadolint; then
  hadolint "$rendered"/docker/Dockerfile.*
fi
if [ -d "$rendered/compose" ] && has check-jsonschema; then
  check-jsonschema --builtin-schema vendor.compose-spec "$rendered/compose/compose.yaml"
fi
if [ -d "$rendered/kubernetes" ] && has kubectl; then
  kubectl kustomize "$rendered/kubernetes/overlays/prod" > "$rendered/prod.yaml"
  if has kubernetes-validate; then
    # Of custom resources it has no schema, and says so.
    kubernetes-validate --strict "$rendered"/kubernetes/base/deployment.yaml "$rendered"/kubernetes/base/service.yaml
  fi
fi
if [ -d "$rendered/helm" ] && has helm; then
  helm lint --strict "$rendered"/helm/*
fi
echo "all is well; the files are in $rendered"
