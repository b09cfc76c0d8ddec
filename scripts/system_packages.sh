#!/usr/bin/env bash
# Installs what tests need and pip cannot bring: containers, Slurm, a browser. For root on Debian and Ubuntu.
# No daemon is started: tests start their own.
set -euo pipefail
packages=(bubblewrap chromium munge podman runc slurm-client slurmctld slurmd)
missing=()
for package in "${packages[@]}"; do
  dpkg-query --show --showformat='${Status}' "$package" 2>/dev/null | grep -q "install ok installed" || missing+=("$package")
done
if [ ${#missing[@]} = 0 ]; then
  exit 0
fi
echo "Installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
apt-get update --quiet --quiet
apt-get install --quiet --quiet --yes --no-install-recommends "${missing[@]}" >/dev/null
